"""Language modelling: a decoder-only transformer over the bytes of text."""
