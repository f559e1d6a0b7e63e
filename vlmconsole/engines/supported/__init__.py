"""The engines that the lab knows, one module each: its object is `ENGINE` (see `engines.engine`)."""
