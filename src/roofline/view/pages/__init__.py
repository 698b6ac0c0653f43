"""Reports as pages of HTML that need nothing beside themselves."""
