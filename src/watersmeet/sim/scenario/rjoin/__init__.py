"""How RJoin runs a scenario: a load on a static or a dynamic network of peers."""
