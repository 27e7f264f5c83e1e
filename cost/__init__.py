"""Operations, parameters and bytes of a plan, without running anything."""
