// Entries of a metered table that take a priority: of streams, of launches and of nodes of graphs.
#include <algorithm>
#include <vector>

#include "server/executor/metering/meters.h"

namespace rcuda::server {
namespace {

// A lower number is a higher priority.
int limited(int priority) {
  int least = 0, greatest = 0;
  if (meters().driver.cuCtxGetStreamPriorityRange(&least, &greatest) != CUDA_SUCCESS) return 0;
  return std::max(priority,
                  least - static_cast<int>(std::min<uint32_t>(meters().priorities, 1000)));
}

CUresult create_stream(CUstream* stream, unsigned flags, int priority) {
  return meters().driver.cuStreamCreateWithPriority(stream, flags, limited(priority));
}

CUresult set_stream_attribute(CUstream stream, CUstreamAttrID attribute,
                              const CUstreamAttrValue* value) {
  CUstreamAttrValue allowed = *value;
  if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) allowed.priority = limited(allowed.priority);
  return meters().driver.cuStreamSetAttribute(stream, attribute, &allowed);
}

CUresult set_node_attribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                            const CUkernelNodeAttrValue* value) {
  CUkernelNodeAttrValue allowed = *value;
  if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) allowed.priority = limited(allowed.priority);
  return meters().driver.cuGraphKernelNodeSetAttribute(node, attribute, &allowed);
}

CUresult launch(const CUlaunchConfig* config, CUfunction function, void** parameters,
                void** extra) {
  CUlaunchConfig allowed = *config;
  std::vector<CUlaunchAttribute> attributes(config->attrs, config->attrs + config->numAttrs);
  for (CUlaunchAttribute& attribute : attributes) {
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
      attribute.value.priority = limited(attribute.value.priority);
    }
  }
  allowed.attrs = attributes.data();
  return meters().driver.cuLaunchKernelEx(&allowed, function, parameters, extra);
}

}  // namespace

void limit_priorities(api::DriverTable* table) {
  replace_entry(table->cuStreamCreateWithPriority, &create_stream);
  replace_entry(table->cuStreamSetAttribute, &set_stream_attribute);
  replace_entry(table->cuGraphKernelNodeSetAttribute, &set_node_attribute);
  replace_entry(table->cuLaunchKernelEx, &launch);
}

}  // namespace rcuda::server
