//! What an ELF file says of itself: machine, interpreter, needed libraries.
