// Graphs built explicitly: structure, execution order and concurrency, updates, user objects.
// Parameters of single nodes: graph_node_test.cpp. Memory: graph_memory_test.cpp. Results of
// invalid calls are those of driver 580 on an H200.
#include <algorithm>
#include <map>
#include <random>

#include "tests/unit/softgpu/driver/graph_fixture.h"

namespace softgpu::driver {
namespace {

class GraphTest : public GraphFixture {};

TEST_F(GraphTest, NodesRunInTheOrderOfTheirEdges) {
  // Random graphs over a few words: every node that accesses a word depends on the previous node
  // that accesses it.
  constexpr int kGraphWords = 5, kNodes = 60;
  for (unsigned seed = 0; seed < 8; ++seed) {
    std::mt19937 random(seed);
    CUgraph graph = nullptr;
    CUDA_OK(cuGraphCreate(&graph, 0));
    std::vector<CUgraphNode> last(kGraphWords, nullptr);
    std::vector<uint32_t> expected(kGraphWords, 0);
    for (int w = 0; w < kGraphWords; ++w) write(w, 0);
    for (uint32_t n = 1; n <= kNodes; ++n) {
      const int to = static_cast<int>(random() % kGraphWords);
      const int from = static_cast<int>(random() % kGraphWords);
      std::vector<CUgraphNode> after;
      if (last[to] != nullptr) after.push_back(last[to]);
      if (random() % 2 == 0 || from == to) {
        last[to] = kernel(graph, shift_, word(to), n, after);
        expected[to] = shifted(expected[to], {n});
      } else {
        if (last[from] != nullptr && last[from] != last[to]) after.push_back(last[from]);
        last[to] = last[from] = kernel(graph, copy_, word(to), word(from), after);
        expected[to] = expected[from];
      }
    }
    const CUgraphExec exec = instantiate(graph);
    run(exec);
    for (int w = 0; w < kGraphWords; ++w) EXPECT_EQ(read(w), expected[w]) << "seed " << seed;
    CUDA_OK(cuGraphExecDestroy(exec));
    CUDA_OK(cuGraphDestroy(graph));
  }
}

TEST_F(GraphTest, IndependentBranchesRunAtTheSameTime) {
  // Each branch waits for a word that the other branch sets.
  const CUgraphNode root = empty_node(graph_);
  const CUgraphNode a = kernel(graph_, set_, word(0), 1, {root});
  kernel(graph_, spin_, word(1), 0, {a});
  const CUgraphNode b = kernel(graph_, spin_, word(0), 0, {root});
  kernel(graph_, set_, word(1), 1, {b});
  run(instantiate(graph_));
  EXPECT_EQ(read(1), 1u);
}

TEST_F(GraphTest, WideGraphsRunCompletely) {
  constexpr int kWide = 600;
  std::vector<CUgraphNode> all;
  for (int i = 0; i < kWide; ++i) all.push_back(kernel(graph_, add_, word(i % 7), 1));
  const CUgraphNode joined = empty_node(graph_, all);
  for (int i = 0; i < kWide; ++i) kernel(graph_, add_, word(7), 1, {joined});
  const CUgraphExec exec = instantiate(graph_);
  run(exec);
  run(exec);
  uint32_t sum = 0;
  for (int i = 0; i < 7; ++i) sum += read(i);
  EXPECT_EQ(sum, 2u * kWide);
  EXPECT_EQ(read(7), 2u * kWide);
}

TEST_F(GraphTest, LaunchesOfOneExecutableFollowEachOther) {
  kernel(graph_, shift_, word(0), 1, {kernel(graph_, shift_, word(0), 2)});
  const CUgraphExec exec = instantiate(graph_);
  const CUstream free = stream(CU_STREAM_NON_BLOCKING);
  uint32_t expected = 0;
  for (int i = 0; i < 50; ++i) {
    CUDA_OK(cuGraphLaunch(exec, i % 2 == 0 ? s_ : free));
    expected = shifted(expected, {2, 1});
  }
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(read(0), expected);
}

TEST_F(GraphTest, ALaunchIsAnOperationOfItsStream) {
  const CUgraphNode first = kernel(graph_, shift_, word(0), 2);
  kernel(graph_, shift_, word(1), 2);
  kernel(graph_, shift_, word(0), 3, {first});
  const CUgraphExec exec = instantiate(graph_);
  CUDA_OK(spin(s_, word(9)));
  CUDA_OK(shift(s_, word(0), 1));
  CUDA_OK(shift(s_, word(1), 1));
  CUDA_OK(cuGraphLaunch(exec, s_));
  CUDA_OK(shift(s_, word(0), 4));
  CUDA_OK(shift(s_, word(1), 4));
  CUDA_OK(cuGraphExecDestroy(exec));  // pending launches are not affected
  CUDA_OK(cuGraphDestroy(graph_));
  EXPECT_EQ(cuStreamQuery(s_), CUDA_ERROR_NOT_READY);
  write(9, 1);
  CUDA_OK(cuStreamSynchronize(s_));
  EXPECT_EQ(read(0), shifted(0, {1, 2, 3, 4}));
  EXPECT_EQ(read(1), shifted(0, {1, 2, 4}));
}

// softgpu only: the queues of hardware have another length.
TEST_F(GraphTest, ALaunchThatWaitsForRoomIsNotSeenAndHoldsUpNobody) {
  const CUevent recorded = event();
  CUgraphNode node = nullptr;
  CUDA_OK(cuGraphAddEventRecordNode(&node, graph_, nullptr, 0, recorded));
  const CUgraphExec exec = instantiate(graph_);
  CUDA_OK(spin(s_, word(9)));
  for (int i = 0; i < 1021; ++i) CUDA_OK(cuMemsetD32Async(word(1), 1, 1, s_));
  std::atomic<bool> launching{false}, launched{false};
  in_thread([&] {
    launching = true;
    EXPECT_EQ(cuGraphLaunch(exec, s_), CUDA_SUCCESS);
    launched = true;
  });
  while (!launching) std::this_thread::yield();
  // Repeated, because the test cannot find out when the launch begins to wait.
  int refused = 0;
  CUgraphExecUpdateResultInfo info{};
  for (int i = 0; i < 2000; ++i) {
    std::this_thread::yield();
    if (cuEventQuery(recorded) != CUDA_SUCCESS) ++refused;
    if (cuGraphExecUpdate_v2(exec, graph_, &info) != CUDA_SUCCESS) ++refused;
  }
  EXPECT_EQ(refused, 0);
  EXPECT_FALSE(launched);
  write(9, 1);
  join_threads();
  CUDA_OK(cuEventSynchronize(recorded));
  EXPECT_EQ(read(1), 1u);
}

TEST_F(GraphTest, ChildGraphsAreCopiesAndRunInPlace) {
  CUgraph inner = nullptr;
  CUDA_OK(cuGraphCreate(&inner, 0));
  const CUgraphNode in_first = kernel(inner, shift_, word(0), 2);
  kernel(inner, shift_, word(0), 3, {in_first});
  const CUgraphNode before = kernel(graph_, shift_, word(0), 1);
  CUgraphNode child = nullptr;
  CUDA_OK(cuGraphAddChildGraphNode(&child, graph_, &before, 1, inner));
  kernel(graph_, shift_, word(0), 4, {child});
  kernel(inner, shift_, word(0), 99);  // not in the copy
  CUgraph copy = nullptr;
  CUDA_OK(cuGraphChildGraphNodeGetGraph(child, &copy));
  EXPECT_NE(copy, inner);
  size_t nodes = 0;
  CUDA_OK(cuGraphGetNodes(copy, nullptr, &nodes));
  EXPECT_EQ(nodes, 2u);
  EXPECT_EQ(cuGraphDestroy(copy), CUDA_ERROR_INVALID_VALUE);
  const CUgraphExec exec = instantiate(graph_);
  run(exec);
  EXPECT_EQ(read(0), shifted(0, {1, 2, 3, 4}));

  CUgraph other = nullptr;
  CUDA_OK(cuGraphCreate(&other, 0));
  kernel(other, shift_, word(0), 6, {kernel(other, shift_, word(0), 5)});
  CUDA_OK(cuGraphExecChildGraphNodeSetParams(exec, child, other));
  write(0, 0);
  run(exec);
  EXPECT_EQ(read(0), shifted(0, {1, 5, 6, 4}));
  EXPECT_EQ(cuGraphExecChildGraphNodeSetParams(exec, child, inner),
            CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
}

TEST_F(GraphTest, EmptyGraphsAndEmptyChildrenRun) {
  CUgraph inner = nullptr;
  CUDA_OK(cuGraphCreate(&inner, 0));
  run(instantiate(inner));
  const CUgraphNode before = kernel(graph_, shift_, word(0), 1);
  CUgraphNode child = nullptr;
  CUDA_OK(cuGraphAddChildGraphNode(&child, graph_, &before, 1, inner));
  kernel(graph_, shift_, word(0), 2, {child});
  run(instantiate(graph_));
  EXPECT_EQ(read(0), shifted(0, {1, 2}));
}

TEST_F(GraphTest, EdgesAreChecked) {
  const CUgraphNode x = empty_node(graph_);
  const CUgraphNode y = empty_node(graph_, {x});
  CUgraphNode made = nullptr;
  const CUgraphNode twice[] = {x, x};
  EXPECT_EQ(cuGraphAddEmptyNode(&made, graph_, twice, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddDependencies_v2(graph_, &x, &y, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddDependencies_v2(graph_, &x, &x, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphRemoveDependencies_v2(graph_, &y, &x, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  CUgraph other = nullptr;
  CUDA_OK(cuGraphCreate(&other, 0));
  EXPECT_EQ(cuGraphAddEmptyNode(&made, other, &x, 1), CUDA_ERROR_INVALID_VALUE);
  const CUgraphNode foreign = empty_node(other);
  EXPECT_EQ(cuGraphAddDependencies_v2(graph_, &x, &foreign, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  // Instantiation detects a cycle.
  CUDA_OK(cuGraphAddDependencies_v2(graph_, &y, &x, nullptr, 1));
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph_, 0), CUDA_ERROR_INVALID_VALUE);
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  EXPECT_EQ(cuGraphInstantiateWithParams(&exec, graph_, &params), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
  CUDA_OK(cuGraphRemoveDependencies_v2(graph_, &y, &x, nullptr, 1));
  CUDA_OK(cuGraphInstantiateWithFlags(&exec, graph_, 0));
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph_, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph_, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphLaunch(nullptr, s_), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphTest, QueriesFillArrays) {
  const CUgraphNode x = empty_node(graph_);
  const CUgraphNode y = empty_node(graph_, {x});
  size_t count = 0;
  CUDA_OK(cuGraphGetNodes(graph_, nullptr, &count));
  EXPECT_EQ(count, 2u);
  CUgraphNode nodes[4] = {x, x, x, x};
  count = 1;
  CUDA_OK(cuGraphGetNodes(graph_, nodes, &count));
  EXPECT_EQ(count, 1u);
  count = 4;
  CUDA_OK(cuGraphGetNodes(graph_, nodes, &count));
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(nodes[1], y);
  EXPECT_EQ(nodes[2], nullptr);
  EXPECT_EQ(nodes[3], nullptr);
  count = 4;
  CUDA_OK(cuGraphGetRootNodes(graph_, nodes, &count));
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(nodes[0], x);
  CUgraphNode from[2], to[2];
  CUgraphEdgeData data[2];
  count = 2;
  CUDA_OK(cuGraphGetEdges_v2(graph_, from, to, data, &count));
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(from[0], x);
  EXPECT_EQ(to[0], y);
  EXPECT_EQ(data[0].type, CU_GRAPH_DEPENDENCY_TYPE_DEFAULT);
}

TEST_F(GraphTest, UpdateTakesParametersFromAGraphOfTheSameShape) {
  auto build = [&](uint32_t first, uint32_t second) {
    CUgraph graph = nullptr;
    EXPECT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    kernel(graph, shift_, word(0), second, {kernel(graph, shift_, word(0), first)});
    return graph;
  };
  const CUgraph one = build(1, 2), two = build(3, 4);
  const CUgraphExec exec = instantiate(one);
  CUgraphExecUpdateResultInfo info{};
  CUDA_OK(cuGraphExecUpdate_v2(exec, two, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  run(exec);
  EXPECT_EQ(read(0), shifted(0, {3, 4}));

  CUgraph clone = nullptr;
  CUDA_OK(cuGraphClone(&clone, one));
  CUDA_OK(cuGraphExecUpdate_v2(exec, clone, &info));
  write(0, 0);
  run(exec);
  EXPECT_EQ(read(0), shifted(0, {1, 2}));

  const CUgraphNode extra = empty_node(clone);
  EXPECT_EQ(cuGraphExecUpdate_v2(exec, clone, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  CUDA_OK(cuGraphDestroyNode(extra));
  CUDA_OK(cuGraphExecUpdate_v2(exec, clone, &info));

  CUgraph retyped = nullptr, unordered = nullptr;
  CUDA_OK(cuGraphCreate(&retyped, 0));
  const CUgraphNode kept = kernel(retyped, shift_, word(0), 1);
  const CUgraphNode changed = empty_node(retyped, {kept});
  EXPECT_EQ(cuGraphExecUpdate_v2(exec, retyped, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
  EXPECT_EQ(info.errorNode, changed);

  CUDA_OK(cuGraphCreate(&unordered, 0));
  const CUgraphNode a = kernel(unordered, shift_, word(0), 1);
  const CUgraphNode b = kernel(unordered, shift_, word(0), 2);
  EXPECT_EQ(cuGraphExecUpdate_v2(exec, unordered, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  CUDA_OK(cuGraphAddDependencies_v2(unordered, &a, &b, nullptr, 1));
  CUDA_OK(cuGraphExecUpdate_v2(exec, unordered, &info));
  KernelNode other_function(set_, word(2), 8);
  CUDA_OK(cuGraphKernelNodeSetParams_v2(a, &other_function.params));
  CUDA_OK(cuGraphExecUpdate_v2(exec, unordered, &info));
  write(0, 0);
  run(exec);
  EXPECT_EQ(read(0), 2u);
  EXPECT_EQ(read(2), 8u);
}

TEST_F(GraphTest, UpdatePairsNodesByTheirPlaceInTheGraph) {
  const CUDA_HOST_NODE_PARAMS host{[](void*) {}, nullptr};
  CUgraphNode called = nullptr;
  const CUgraphNode first = kernel(graph_, shift_, word(0), 1);
  CUDA_OK(cuGraphAddHostNode(&called, graph_, &first, 1, &host));
  const CUgraphExec exec = instantiate(graph_);
  // The same graph, with its nodes created in the other order.
  CUgraph other = nullptr;
  CUDA_OK(cuGraphCreate(&other, 0));
  CUDA_OK(cuGraphAddHostNode(&called, other, nullptr, 0, &host));
  const CUgraphNode later = kernel(other, shift_, word(0), 2);
  CUDA_OK(cuGraphAddDependencies_v2(other, &later, &called, nullptr, 1));
  CUgraphExecUpdateResultInfo info{};
  CUDA_OK(cuGraphExecUpdate_v2(exec, other, &info));
  run(exec);
  EXPECT_EQ(read(0), 2u);
}

TEST_F(GraphTest, ClonesAreIndependent) {
  const CUgraphNode original = kernel(graph_, shift_, word(0), 1);
  CUgraph clone = nullptr, other = nullptr;
  CUDA_OK(cuGraphClone(&clone, graph_));
  CUDA_OK(cuGraphCreate(&other, 0));
  CUgraphNode twin = nullptr;
  CUDA_OK(cuGraphNodeFindInClone(&twin, original, clone));
  EXPECT_NE(twin, original);
  EXPECT_EQ(cuGraphNodeFindInClone(&twin, original, other), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuGraphNodeFindInClone(&twin, original, clone));
  KernelNode changed(shift_, word(0), 7);
  CUDA_OK(cuGraphKernelNodeSetParams_v2(twin, &changed.params));
  CUDA_OK(cuGraphDestroyNode(original));
  run(instantiate(clone));
  EXPECT_EQ(read(0), 7u);
}

// softgpu only: NVIDIA's driver does not check destroyed handles.
TEST_F(GraphTest, HandlesEndWithTheirObjects) {
  const CUgraphNode node = empty_node(graph_);
  CUDA_OK(cuGraphDestroyNode(node));
  CUgraphNodeType type{};
  EXPECT_EQ(cuGraphNodeGetType(node, &type), CUDA_ERROR_INVALID_VALUE);
  const CUgraphExec exec = instantiate(graph_);
  CUDA_OK(cuGraphExecDestroy(exec));
  EXPECT_EQ(cuGraphLaunch(exec, s_), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuGraphDestroy(graph_));
  EXPECT_EQ(cuGraphDestroy(graph_), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphTest, UserObjectsLiveAsLongAsGraphsAndExecutables) {
  std::atomic<int> destroyed{0};
  CUuserObject object = nullptr;
  const CUhostFn count = [](void* data) { ++*static_cast<std::atomic<int>*>(data); };
  EXPECT_EQ(cuUserObjectCreate(&object, &destroyed, count, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuUserObjectCreate(&object, &destroyed, count, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
            CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuUserObjectCreate(&object, &destroyed, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  EXPECT_EQ(cuUserObjectRetain(object, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphRetainUserObject(graph_, object, 1, 2), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuGraphRetainUserObject(graph_, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CUgraph clone = nullptr;
  CUDA_OK(cuGraphClone(&clone, graph_));
  const CUgraphExec exec = instantiate(graph_);
  CUDA_OK(cuGraphDestroy(graph_));
  CUDA_OK(cuGraphDestroy(clone));
  EXPECT_EQ(destroyed, 0);
  run(exec);
  EXPECT_EQ(destroyed, 0);
  CUDA_OK(cuGraphExecDestroy(exec));
  while (destroyed == 0) std::this_thread::yield();  // called on another thread
  EXPECT_EQ(destroyed, 1);
}

TEST_F(GraphTest, ExecutablesTakeOverTheUserObjectsOfNewChildGraphs) {
  // Two levels of children; each of the innermost graphs holds an object.
  std::atomic<int> destroyed[3] = {};
  CUgraph outer[3] = {}, whole[3] = {};
  CUgraphNode child[3] = {};
  for (int i = 0; i < 3; ++i) {
    CUgraph inner = nullptr;
    CUuserObject object = nullptr;
    CUDA_OK(cuUserObjectCreate(
        &object, &destroyed[i], [](void* data) { ++*static_cast<std::atomic<int>*>(data); }, 1,
        CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    CUDA_OK(cuGraphCreate(&inner, 0));
    CUDA_OK(cuGraphCreate(&outer[i], 0));
    CUDA_OK(cuGraphCreate(&whole[i], 0));
    CUDA_OK(cuGraphRetainUserObject(inner, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CUDA_OK(cuGraphAddChildGraphNode(&child[i], outer[i], nullptr, 0, inner));
    CUDA_OK(cuGraphDestroy(inner));
    CUDA_OK(cuGraphAddChildGraphNode(&child[i], whole[i], nullptr, 0, outer[i]));
  }
  const auto let_go = [&](int i) {
    CUDA_OK(cuGraphDestroy(outer[i]));
    if (i != 0) {
      CUDA_OK(cuGraphDestroy(whole[i]));
    }
  };
  const auto wait_for = [&](int i) {
    while (destroyed[i] == 0) std::this_thread::yield();  // called on another thread
  };
  const CUgraphExec exec = instantiate(whole[0]);
  CUDA_OK(cuGraphExecChildGraphNodeSetParams(exec, child[0], outer[1]));
  let_go(1);
  CUgraphExecUpdateResultInfo info{};
  EXPECT_EQ(destroyed[1], 0);
  CUDA_OK(cuGraphExecUpdate_v2(exec, whole[2], &info));
  let_go(2);
  wait_for(1);
  EXPECT_EQ(destroyed[2], 0);
  CUDA_OK(cuGraphExecChildGraphNodeSetParams(exec, child[0], outer[0]));
  wait_for(2);
  CUDA_OK(cuGraphDestroy(whole[0]));
  let_go(0);
  EXPECT_EQ(destroyed[0], 0);
  CUDA_OK(cuGraphExecDestroy(exec));
  wait_for(0);
}

TEST_F(GraphTest, ManyThreadsBuildAndLaunchGraphs) {
  for (int i = 0; i < 4; ++i) {
    in_thread([this] {
      const CUstream mine = stream(CU_STREAM_NON_BLOCKING);
      for (int n = 0; n < 20; ++n) {
        EXPECT_EQ(cuStreamBeginCapture_v2(mine, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
        EXPECT_EQ(add(mine, word(0), 1), CUDA_SUCCESS);
        EXPECT_EQ(add(mine, word(0), 1), CUDA_SUCCESS);
        CUgraph graph = nullptr;
        CUgraphExec exec = nullptr;
        EXPECT_EQ(cuStreamEndCapture(mine, &graph), CUDA_SUCCESS);
        EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
        EXPECT_EQ(cuGraphLaunch(exec, mine), CUDA_SUCCESS);
        EXPECT_EQ(cuGraphLaunch(exec, mine), CUDA_SUCCESS);
        EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
        EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
      }
      EXPECT_EQ(cuStreamSynchronize(mine), CUDA_SUCCESS);
    });
  }
  join_threads();
  EXPECT_EQ(read(0), 4u * 20 * 2 * 2);
}

}  // namespace
}  // namespace softgpu::driver
