"""UFL, the language of op-graphs (PIER, appendix A): text to frozen values and back."""
