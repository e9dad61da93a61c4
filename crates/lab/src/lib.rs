//! Experiments: the kernel patches' measurements of queue policies, reproduced in user space.
