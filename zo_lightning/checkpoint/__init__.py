"""What a run leaves on disks so that nothing it has acknowledged is lost: a journal, a store, and what fills them."""
