"""An app in the browser that answers while its reader turns the knobs."""
