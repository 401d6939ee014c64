// The fatbin that nvcc made of kernels.cu: KERNELS_FATBIN is its file.
asm(R"(
  .section .nv_fatbin, "a"
  .balign 8
  .global kernels_fatbin
kernels_fatbin:
  .incbin ")" KERNELS_FATBIN R"("
  .previous
)");
