// librcuda-verbs.so of another build. Of its interface (common/transport/verbs/plugin.h) only the
// entry point and the version at the beginning are the same.
extern "C" __attribute__((visibility("default"))) const void* rcuda_verbs_plugin() {
  static const char* const plugin[] = {"rcuda-verbs-of-another-build"};
  return plugin;
}
