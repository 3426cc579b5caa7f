"""What each `kvtier` command takes and says, one file a group. The work is done elsewhere in experiments."""
