"""What the laws are fitted to: trials and tables, brought into one form."""
