"""The ports over one seed: virtual time, chance, network, disk and trace. Same file names as rmqha.host."""
