"""One file per method; importing one registers it. No scorer imports another."""
