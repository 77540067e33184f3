"""From records that Argilla 2.8 wrote to preference pairs in TRL's format: checked, counted, split and shuffled."""
