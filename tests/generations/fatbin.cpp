// kernels.cu as nvcc made it: KERNELS_FATBIN is the file.
asm(R"(
  .section .nv_fatbin, "a"
  .balign 8
  .global kernels_fatbin
kernels_fatbin:
  .incbin ")" KERNELS_FATBIN R"("
  .previous
)");
