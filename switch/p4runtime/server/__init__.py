"""The P4Runtime server over the emulator: a device, its tables, who may write them."""
