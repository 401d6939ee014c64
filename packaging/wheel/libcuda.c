// libcuda.so of a wheel, whose archive cannot have symbolic links. It defines no symbols and needs libcuda.so.1, so a
// program that opens it finds the functions of libcuda.so.1.
