// Entries of a metered table for the memory of graphs.
#include "server/executor/metering/meters.h"

namespace rcuda::server {
namespace {

// The driver may have reserved the memory of the new executable, if it was asked to upload it.
CUresult keep_if_it_fits(CUgraphExec* executable, CUgraph graph) {
  Meters& all = meters();
  all.graphs.made(*executable, graph);
  if (all.graphs.book_growth()) return CUDA_SUCCESS;
  all.driver.cuGraphExecDestroy(*executable);
  *executable = nullptr;
  all.refresh();
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult instantiate(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  const CUresult result = meters().driver.cuGraphInstantiateWithFlags(executable, graph, flags);
  return result == CUDA_SUCCESS ? keep_if_it_fits(executable, graph) : result;
}

CUresult instantiate_with(CUgraphExec* executable, CUgraph graph,
                          CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  const CUresult result =
      meters().driver.cuGraphInstantiateWithParams(executable, graph, parameters);
  return result == CUDA_SUCCESS ? keep_if_it_fits(executable, graph) : result;
}

CUresult destroy(CUgraphExec executable) {
  meters().graphs.destroyed(executable);
  const CUresult result = meters().driver.cuGraphExecDestroy(executable);
  meters().graphs.refresh();
  return result;
}

CUresult destroy_graph(CUgraph graph) {
  const CUresult result = meters().driver.cuGraphDestroy(graph);
  meters().graphs.refresh();
  return result;
}

// Nothing is limited: what the driver has reserved by then is looked at.
CUresult count(CUgraphExec executable, CUresult result) {
  Meters& all = meters();
  if (result == CUDA_SUCCESS && all.graphs.has_memory(executable)) all.graphs.book_growth();
  return result;
}

CUresult upload(CUgraphExec executable, CUstream stream) {
  Meters& all = meters();
  all.graphs.changed(executable);
  if (!all.limits) return count(executable, all.driver.cuGraphUpload(executable, stream));
  // Nothing to book, but the program wants the upload.
  if (!all.graphs.has_memory(executable)) return all.driver.cuGraphUpload(executable, stream);
  return all.graphs.prepare(executable, stream);
}

// A launch in a stream that captures becomes a node of a graph.
CUresult launch(CUgraphExec executable, CUstream stream) {
  Meters& all = meters();
  if (!all.limits) return count(executable, all.driver.cuGraphLaunch(executable, stream));
  if (!captures(stream)) {
    const CUresult prepared = all.graphs.prepare(executable, stream);
    if (prepared != CUDA_SUCCESS) return prepared;
  }
  return all.driver.cuGraphLaunch(executable, stream);
}

CUresult trim(CUdevice device) {
  const CUresult result = meters().driver.cuDeviceGraphMemTrim(device);
  meters().graphs.trimmed();
  meters().graphs.refresh();
  return result;
}

}  // namespace

void meter_graphs(api::DriverTable* table) {
  replace_entry(table->cuGraphInstantiateWithFlags, &instantiate);
  replace_entry(table->cuGraphInstantiateWithParams, &instantiate_with);
  replace_entry(table->cuGraphExecDestroy, &destroy);
  replace_entry(table->cuGraphDestroy, &destroy_graph);
  replace_entry(table->cuGraphUpload, &upload);
  replace_entry(table->cuGraphLaunch, &launch);
  replace_entry(table->cuDeviceGraphMemTrim, &trim);
}

}  // namespace rcuda::server
