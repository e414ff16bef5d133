"""The shipped recipes: <setting>-<method>, put together from `settings/` and `methods/`; and files that extend them."""
