"""What people look at: console (while it runs), tables, figures."""
