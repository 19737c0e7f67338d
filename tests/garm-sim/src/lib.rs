//! A strict simulation of GARM, for tests, the demo and people who build images.
