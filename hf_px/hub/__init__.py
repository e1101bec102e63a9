"""Everything that enters or leaves the machine."""
