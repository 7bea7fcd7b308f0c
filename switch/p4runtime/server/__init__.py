"""The P4Runtime server of the emulator: a device, its tables, and the arbitration of controllers."""
