// libcuda.so of a wheel. It has nothing of its own and needs libcuda.so.1, so a program that opens it finds all
// functions of that. An archive of a wheel has no symbolic links.
