//! Sources that lie on the second read, fail, stall, complete out of order or on another CPU, or vanish.
