//! A virtual waiting room: holds a crowd outside, shows true positions, lets in what fits.
