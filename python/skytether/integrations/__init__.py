"""What plugs Skytether into programs of others, each module by that program's own means."""
