"""What the laws are fitted to: trials and tables, converted to one form."""
