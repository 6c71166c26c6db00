"""The one view of each kind of result: `view(result, page)` adds its sections to a page of blocks."""
