"""What people look at: console (while it runs), tables, figures; several runs compared, beside the papers' numbers."""
