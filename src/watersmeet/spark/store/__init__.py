"""Checkpoints, links and answers in object stores: what a store must do, and the copies that are worked on here."""
