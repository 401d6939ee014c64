// References to user objects: those of the application, and those that graphs hold.
#include <cuda.h>
#include <gtest/gtest.h>

#include "tests/unit/client/two_puppets.h"

namespace rcuda::client {
namespace {

class UserObjectTest : public TwoPuppetsTest {};

TEST_F(UserObjectTest, OnlyReferencesOfTheApplicationMoveToAGraph) {
  CUgraph graph = nullptr;
  CUuserObject object = nullptr;
  ASSERT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuUserObjectCreate(
                &object, nullptr, [](void*) {}, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
            CUDA_SUCCESS);
  const auto move = [&](unsigned count) {
    return cuGraphRetainUserObject(graph, object, count, CU_GRAPH_USER_OBJECT_MOVE);
  };
  EXPECT_EQ(move(3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(move(1), CUDA_SUCCESS);
  EXPECT_EQ(move(2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphRetainUserObject(graph, object, 5, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuUserObjectRelease(object, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(move(1), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

}  // namespace
}  // namespace rcuda::client
