// Parts of a worker that need no session.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file_cache.h"
#include "common/identity/encoding.h"
#include "server/driver/driver_loader.h"
#include "server/executor/answers/blobs.h"
#include "server/executor/answers/output_capture.h"
#include "server/executor/images/image_cache.h"
#include "server/executor/images/image_store.h"
#include "server/executor/objects/object_table.h"
#include "server/executor/peers/peer_settings.h"
#include "server/protocol/settings.h"
#include "server/protocol/start_failure.h"
#include "server/worker/daemon_listener.h"
#include "server/worker/end_watch.h"
#include "server/worker/staging_memory.h"

namespace rcuda::server {
namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    char path[] = "/tmp/rcuda-worker-test-XXXXXX";
    path_ = ::mkdtemp(path);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<std::byte> some_bytes(size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(seed));
  return bytes;
}

// ---- failures of the start ---------------------------------------------------------------------

TEST(StartFailureTest, WhatSomebodyMustMendLasts) {
  for (const Status& lasting :
       {Status::from_errno(ENOENT, "the binary"), Status::from_errno(ENOEXEC, "the binary"),
        Status::from_cuda(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "cuInit"),
        Status::from_cuda(CUDA_ERROR_NO_DEVICE, "cuInit"), Status(Code::kNotFound, "no driver"),
        Status(Code::kUnsupported, "an old driver"), Status(Code::kInvalidArgument, "a setting")}) {
    EXPECT_TRUE(is_lasting(lasting)) << lasting.message();
  }
  for (const Status& passing :
       {Status::from_errno(EAGAIN, "fork"), Status::from_errno(ENOMEM, "fork"),
        Status::from_errno(EMFILE, "a socket"), Status::from_cuda(CUDA_ERROR_OUT_OF_MEMORY, "it"),
        Status::from_cuda(CUDA_ERROR_SYSTEM_NOT_READY, "cuInit"),
        Status(Code::kTimeout, "it hangs"), Status(Code::kUnavailable, "a base in use")}) {
    EXPECT_FALSE(is_lasting(passing)) << passing.message();
  }
}

// ---- few descriptors ---------------------------------------------------------------------------

// While it exists, this process can open only `left` more files.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t left) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const UniqueFd next(::dup(STDIN_FILENO));
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(next.get()) + left;
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(FewDescriptorsTest, ADaemonListenerThatNothingCouldWakeDoesNotStart) {
  const FewDescriptors none(0);
  DaemonListener listener(STDIN_FILENO, STDOUT_FILENO, {}, {});
  EXPECT_NE(listener.start().message().find("ulimit -n"), std::string::npos);
}

TEST(FewDescriptorsTest, OutputIsNotCapturedIfItCouldNotBeGivenBack) {
  struct stat before {
  }, after{};
  ASSERT_EQ(::fstat(STDOUT_FILENO, &before), 0);
  {
    const FewDescriptors for_a_pipe(2);
    EXPECT_FALSE(OutputCapture::start().ok());
  }
  ASSERT_EQ(::fstat(STDOUT_FILENO, &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
}

TEST(DaemonListenerTest, AServerThatStopsIsNotGone) {
  for (const bool stops : {true, false}) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    UniqueFd daemon(ends[0]);
    const UniqueFd worker(ends[1]);
    ::shutdown(daemon.get(), SHUT_RD);
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    UniqueFd reader(ends[0]);
    const UniqueFd reports(ends[1]);
    std::promise<std::string> why;
    DaemonListener listener(worker.get(), reports.get(), {},
                            [&](std::string text) { why.set_value(text); });
    ASSERT_TRUE(listener.start().ok());
    if (stops) {
      ::shutdown(daemon.get(), SHUT_WR);  // as if the message to stop did not fit into the socket
    } else {
      reader.reset();
      daemon.reset();
    }
    EXPECT_EQ(why.get_future().get(),
              stops ? "the server stops" : "the server's daemon has ended: see the server's log");
  }
}

// ---- end watch ---------------------------------------------------------------------------------

TEST(EndWatchTest, ASessionThatIsOverAndGoesOnIsEnded) {
  std::atomic<bool> over{false}, asked_while_over{false}, expired{false};
  EndWatch watch(
      [&] {
        if (over) asked_while_over = true;
        return over ? Status(Code::kUnavailable, "gone") : Status();
      },
      std::chrono::milliseconds(4),
      [&](const Status& why) {
        EXPECT_TRUE(asked_while_over);
        EXPECT_EQ(why.context(), "gone");
        expired = true;
      });
  ASSERT_TRUE(watch.start().ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(expired);
  over = true;
  while (!expired) std::this_thread::yield();
}

TEST(EndWatchTest, ASessionThatEndsIsLeftAlone) {
  std::atomic<bool> asked{false};
  EndWatch watch(
      [&] {
        asked = true;
        return Status(Code::kUnavailable, "gone");
      },
      std::chrono::seconds(4), [](const Status&) { FAIL() << "it had its time"; });
  ASSERT_TRUE(watch.start().ok());
  while (!asked) std::this_thread::yield();
}

// ---- environment -------------------------------------------------------------------------------

// A worker waits without limit for a silent client, which may be stopped, but not for a silent peer
// worker.
TEST(PeerTimeoutTest, IsForWorkersOnlyByDefault) {
  EXPECT_EQ(Settings().peer_timeout.milliseconds().count(), 0);
  EXPECT_NE(PeerSettings().link.peer_timeout.count(), 0);
}

TEST(DriverLoaderTest, WorkersInheritNeitherTheClientLibraryNorBlockingLaunches) {
  TemporaryFolder folder;
  const std::string trap = folder.path() + "/rcuda", fine = folder.path() + "/fine";
  std::filesystem::create_directories(trap);
  std::filesystem::create_directories(fine);
  std::ofstream(folder.path() + "/librcuda.so").put('x');
  std::ofstream(fine + "/libcuda.so.1").put('x');
  std::filesystem::create_symlink("../librcuda.so", trap + "/libcuda.so.1");
  ::setenv("LD_PRELOAD", "", 1);
  ::setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  ::setenv("LD_LIBRARY_PATH", (trap + ":" + fine + ":" + trap).c_str(), 1);
  const std::vector<std::string> environment = worker_environment({"RCUDA_SERVER_POOL=7"});
  ::unsetenv("LD_PRELOAD");
  ::unsetenv("CUDA_LAUNCH_BLOCKING");
  ::unsetenv("LD_LIBRARY_PATH");
  bool found_path = false, found_pool = false;
  for (const std::string& line : environment) {
    EXPECT_FALSE(line.starts_with("LD_PRELOAD=")) << line;
    EXPECT_FALSE(line.starts_with("CUDA_LAUNCH_BLOCKING=")) << line;
    if (line.starts_with("LD_LIBRARY_PATH=")) found_path = line == "LD_LIBRARY_PATH=" + fine;
    found_pool = found_pool || line == "RCUDA_SERVER_POOL=7";
  }
  EXPECT_TRUE(found_path);
  EXPECT_TRUE(found_pool);
}

TEST(DriverLoaderTest, WorkersHaveQueuesForStreamsAndForWhatTheyWaitFor) {
  constexpr char kName[] = "CUDA_DEVICE_MAX_CONNECTIONS";
  const auto seen = [&](const char* given) {
    given ? ::setenv(kName, given, 1) : ::unsetenv(kName);
    std::string found;
    int count = 0;
    for (const std::string& line : worker_environment({})) {
      if (!line.starts_with(std::string(kName) + "=")) continue;
      found = line.substr(sizeof kName);
      ++count;
    }
    EXPECT_EQ(count, 1) << (given ? given : "nothing");
    ::setenv(kName, found.c_str(), 1);
    EXPECT_EQ(most_streams(), std::min(std::atoi(found.c_str()), 32) - 2);
    ::unsetenv(kName);
    return found;
  };
  EXPECT_EQ(seen(nullptr), "8");
  EXPECT_EQ(seen("1"), "8");
  EXPECT_EQ(seen("8"), "8");
  EXPECT_EQ(seen("20"), "20");
  EXPECT_EQ(seen("99"), "99");
  EXPECT_EQ(seen("many"), "8");
}

// ---- objects -----------------------------------------------------------------------------------

TEST(ObjectTableTest, IdsAreBoundOnceAndFreed) {
  ObjectTable table;
  int a, b;
  EXPECT_EQ(table.find(1), nullptr);
  EXPECT_TRUE(table.bind(1, &a, 3));
  EXPECT_FALSE(table.bind(1, &b, 3));
  EXPECT_EQ(table.find(1)->handle, &a);
  EXPECT_EQ(table.find(1)->context, 3u);
  table.unbind(1);
  EXPECT_EQ(table.find(1), nullptr);
  EXPECT_TRUE(table.bind(1, &b, 3));
}

TEST(ObjectTableTest, IdsThatCannotBeAreRefused) {
  ObjectTable table;
  int a;
  EXPECT_FALSE(table.bind(0, &a, 0));
  EXPECT_FALSE(table.bind(wire::kMaxObjectId, &a, 0));
  EXPECT_FALSE(table.bind(1 | wire::kWorkerMinted, &a, 0));
  EXPECT_FALSE(table.bind(wire::kMaxObjectId - 1, &a, 0)) << "far from dense";
  EXPECT_FALSE(table.bind(5, nullptr, 0));
  EXPECT_EQ(table.find(~0u), nullptr);
  EXPECT_EQ(table.find(wire::kWorkerMinted), nullptr);
}

TEST(ObjectTableTest, NamesAreStable) {
  ObjectTable table;
  int a, b;
  ASSERT_TRUE(table.bind(4, &a, 0));
  EXPECT_EQ(table.name(&a, 0), 4u);
  EXPECT_EQ(table.name(nullptr, 0), 0u);
  const wire::ObjectId id = table.name(&b, 0);
  EXPECT_TRUE(id & wire::kWorkerMinted);
  EXPECT_EQ(table.name(&b, 0), id);
  EXPECT_EQ(table.find(id)->handle, &b);
  table.unbind(id);
  EXPECT_EQ(table.find(id), nullptr);
}

// ---- images ------------------------------------------------------------------------------------

UniqueFd opened(const std::string& folder) { return open_cache_directory(folder).value(); }

TEST(ImageCacheTest, ImagesOutliveTheirCacheObject) {
  TemporaryFolder folder;
  const std::vector<std::byte> image = some_bytes(4096, 1);
  const Sha256 hash = sha256(image);
  {
    ImageCache cache(opened(folder.path() + "/images"), 1 << 20);
    EXPECT_EQ(cache.find(hash, image.size()), nullptr);
    ASSERT_TRUE(cache.insert(hash, image).ok());
  }
  ImageCache cache(opened(folder.path() + "/images"), 1 << 20);
  const ImagePointer found = cache.find(hash, image.size());
  ASSERT_NE(found, nullptr);
  EXPECT_TRUE(std::ranges::equal(found->bytes(), image));
  // PTX text must end in a zero, also if the image fills its last page.
  EXPECT_EQ(found->bytes().data()[image.size()], std::byte{0});
  EXPECT_EQ(cache.find(hash, image.size() - 1), nullptr) << "another length is another image";
}

TEST(ImageCacheTest, AWrongHashIsRefused) {
  TemporaryFolder folder;
  ImageCache cache(opened(folder.path()), 1 << 20);
  const std::vector<std::byte> image = some_bytes(100, 1);
  EXPECT_EQ(cache.insert(sha256(some_bytes(100, 2)), image).status().code(),
            Code::kInvalidArgument);
}

TEST(ImageCacheTest, TheLeastRecentlyUsedGoesFirst) {
  TemporaryFolder folder;
  ImageCache cache(opened(folder.path()), 2500);
  std::vector<Sha256> hashes;
  for (int i = 0; i < 2; ++i) {
    const std::vector<std::byte> image = some_bytes(1000, i);
    hashes.push_back(sha256(image));
    ASSERT_TRUE(cache.insert(hashes.back(), image).ok());
    // File times have the resolution of the kernel's tick.
    const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(2 - i);
    std::filesystem::last_write_time(folder.path() + "/" + identity::to_hex(hashes.back()), old);
  }
  const ImagePointer held = cache.find(hashes[0], 1000);  // now the other image is the oldest
  const std::vector<std::byte> third = some_bytes(1000, 2);
  ASSERT_TRUE(cache.insert(sha256(third), third).ok());
  EXPECT_NE(cache.find(hashes[0], 1000), nullptr);
  EXPECT_EQ(cache.find(hashes[1], 1000), nullptr);
  EXPECT_NE(cache.find(sha256(third), 1000), nullptr);
}

// The disk space of the folder's files and of mapped removed files stays below the bound.
TEST(ImageCacheTest, AnImageInUseIsNeitherRemovedNorReplaced) {
  TemporaryFolder folder;
  ImageCache cache(opened(folder.path()), 2500), other_session(opened(folder.path()), 2500);
  const std::vector<std::byte> first = some_bytes(1000, 1), second = some_bytes(1000, 2),
                               third = some_bytes(1000, 3);
  const auto inode = [&](const std::vector<std::byte>& image) {
    struct stat status {};
    return ::stat((folder.path() + "/" + identity::to_hex(sha256(image))).c_str(), &status) == 0
               ? status.st_ino
               : 0;
  };
  ImagePointer used = cache.insert(sha256(first), first).value();
  const auto inode_used = inode(first);
  ASSERT_NE(inode_used, 0u);
  // Two sessions may send the same image at the same time.
  const ImagePointer used_too = other_session.insert(sha256(first), first).value();
  EXPECT_EQ(inode(first), inode_used);
  ImagePointer also_used = other_session.insert(sha256(second), second).value();
  // The folder is full of images in use, so this image is kept only in this session.
  const Result<ImagePointer> kept = cache.insert(sha256(third), third);
  ASSERT_TRUE(kept.ok());
  EXPECT_TRUE(std::ranges::equal((*kept)->bytes(), third));
  EXPECT_EQ(inode(third), 0u);
  EXPECT_NE(inode(first), 0u);
  EXPECT_NE(inode(second), 0u);
  also_used.reset();
  ASSERT_TRUE(cache.insert(sha256(third), third).ok());
  EXPECT_NE(inode(third), 0u);
  EXPECT_EQ(inode(second), 0u);
}

TEST(ImageCacheTest, AFolderThatOthersMayWriteIsNotOpened) {
  TemporaryFolder folder;
  std::filesystem::permissions(folder.path(), std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);
  EXPECT_FALSE(open_cache_directory(folder.path()).ok());
  EXPECT_FALSE(open_cache_directory("/proc/nowhere").ok());
}

TEST(ImageCacheTest, WithoutAFolderImagesLiveInMemory) {
  ImageCache cache({}, 1 << 20);
  const std::vector<std::byte> image = some_bytes(100, 1);
  Result<ImagePointer> kept = cache.insert(sha256(image), image);
  ASSERT_TRUE(kept.ok());
  EXPECT_TRUE(std::ranges::equal((*kept)->bytes(), image));
  EXPECT_EQ(cache.find(sha256(image), image.size()), nullptr);
}

TEST(ImageStoreTest, ChunksMayComeInAnyOrder) {
  ImageCache cache({}, 0);
  ImageStore store(&cache);
  const std::vector<std::byte> image = some_bytes(3000, 3);
  const Sha256 hash = sha256(image);
  bool present = true;
  ASSERT_EQ(store.query(hash, image.size(), &present), CUDA_SUCCESS);
  EXPECT_FALSE(present);
  for (size_t at : {2000u, 0u, 1000u}) {
    EXPECT_EQ(store.find(hash), nullptr);
    ASSERT_EQ(store.add_chunk(hash, at, std::span(image).subspan(at, 1000)), CUDA_SUCCESS);
  }
  ASSERT_NE(store.find(hash), nullptr);
  EXPECT_EQ(store.query(hash, image.size(), &present), CUDA_SUCCESS);
  EXPECT_TRUE(present);
}

TEST(ImageStoreTest, TwoThreadsMaySendTheSameImage) {
  ImageCache cache({}, 0);
  ImageStore store(&cache);
  const std::vector<std::byte> image = some_bytes(3000, 3);
  const Sha256 hash = sha256(image);
  bool present = true;
  for (int thread = 0; thread < 2; ++thread) {
    ASSERT_EQ(store.query(hash, image.size(), &present), CUDA_SUCCESS);
    EXPECT_FALSE(present);
  }
  for (size_t at : {0u, 0u, 1000u, 1000u}) {
    ASSERT_EQ(store.add_chunk(hash, at, std::span(image).subspan(at, 1000)), CUDA_SUCCESS);
    EXPECT_EQ(store.find(hash), nullptr);
  }
  for (int thread = 0; thread < 2; ++thread) {
    ASSERT_EQ(store.add_chunk(hash, 2000, std::span(image).subspan(2000)), CUDA_SUCCESS);
    ASSERT_NE(store.find(hash), nullptr);
  }
}

// Finds the image and marks it as used, as a load does.
ImagePointer use(ImageStore& store, const Sha256& hash) {
  ImagePointer image = store.find(hash);
  EXPECT_NE(image, nullptr);
  if (image) store.note_use(hash);
  return image;
}

// Sends an image of 1,000 bytes, and loads it as the module with this id.
Sha256 send_and_load(ImageStore& store, int seed, wire::ObjectId id) {
  const std::vector<std::byte> image = some_bytes(1000, seed);
  const Sha256 hash = sha256(image);
  bool present = true;
  EXPECT_EQ(store.query(hash, image.size(), &present), CUDA_SUCCESS);
  if (!present) {
    EXPECT_EQ(store.add_chunk(hash, 0, image), CUDA_SUCCESS);
  }
  auto loaded = std::make_shared<ImageStore::Loaded>();
  loaded->images.push_back(use(store, hash));
  store.keep(wire::Kind::kModule, id, std::move(loaded));
  return hash;
}

bool is_present(ImageStore& store, const Sha256& hash) {
  bool present = false;
  EXPECT_EQ(store.query(hash, 1000, &present), CUDA_SUCCESS);
  return present;
}

TEST(ImageStoreTest, ImagesWithoutAFileAreDroppedWhenNothingUsesThem) {
  ImageCache cache({}, 0);
  ImageStore store(&cache, 2000);
  std::set<wire::ObjectId> modules{1, 2, 3, 4};
  const auto exists = [&](wire::Kind, wire::ObjectId id) { return modules.contains(id); };
  std::vector<Sha256> hashes;
  for (const wire::ObjectId id : modules) {
    hashes.push_back(send_and_load(store, static_cast<int>(id), id));
  }
  store.drop_unused(exists);
  for (const Sha256& hash : hashes) EXPECT_TRUE(is_present(store, hash)) << "a module uses it";

  // Queried images are about to be loaded, so these stay.
  for (const wire::ObjectId id : {1u, 2u, 3u}) (void)store.release(wire::Kind::kModule, id);
  store.drop_unused(exists);
  // A load finds these images but fails, because another image is missing. The client repeats it.
  for (const Sha256& hash : hashes) EXPECT_NE(store.find(hash), nullptr);
  store.drop_unused(exists);
  for (const Sha256& hash : hashes) (void)use(store, hash);

  // Three images are unused now, and two fit. The image that was used earliest is dropped.
  store.drop_unused(exists);
  EXPECT_FALSE(is_present(store, hashes[0]));
  for (size_t i = 1; i < hashes.size(); ++i) EXPECT_TRUE(is_present(store, hashes[i]));
  EXPECT_EQ(send_and_load(store, 1, 1), hashes[0]) << "the client sends it again";

  modules.clear();  // their context has ended
  for (const Sha256& hash : hashes) (void)use(store, hash);
  store.drop_unused(exists);
  EXPECT_FALSE(is_present(store, hashes[0]));
  EXPECT_FALSE(is_present(store, hashes[1]));
  EXPECT_TRUE(is_present(store, hashes[2]));
  EXPECT_TRUE(is_present(store, hashes[3]));
}

TEST(ImageStoreTest, ImagesWithAFileStay) {
  const TemporaryFolder folder;
  ImageCache cache(opened(folder.path() + "/images"), 1 << 20);
  ImageStore store(&cache, 0);
  const Sha256 hash = send_and_load(store, 1, 1);
  (void)store.release(wire::Kind::kModule, 1);
  store.drop_unused([](wire::Kind, wire::ObjectId) { return true; });
  EXPECT_NE(store.find(hash), nullptr);
}

TEST(ImageStoreTest, WhatWasNotAnnouncedIsRefused) {
  ImageCache cache({}, 0);
  ImageStore store(&cache);
  const std::vector<std::byte> image = some_bytes(100, 3);
  const Sha256 hash = sha256(image);
  EXPECT_EQ(store.add_chunk(hash, 0, image), CUDA_ERROR_INVALID_IMAGE);
  bool present = false;
  ASSERT_EQ(store.query(hash, 50, &present), CUDA_SUCCESS);
  EXPECT_EQ(store.add_chunk(hash, 0, image), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(store.add_chunk(hash, ~0ull, image), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(store.query(Sha256{}, 0, &present), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(store.query(Sha256{}, 1ull << 40, &present), CUDA_ERROR_INVALID_IMAGE);
}

TEST(BlobsTest, TheOldestGoesWhenThereAreTooMany) {
  Blobs blobs;
  const uint32_t first = blobs.keep(api::Blob(3, std::byte{1}));
  const uint32_t second = blobs.keep(api::Blob(4, std::byte{2}));
  EXPECT_EQ(blobs.read(first, 1, 64).size(), 2u);
  EXPECT_EQ(blobs.read(second, 0, 3).size(), 3u);
  blobs.drop_at(second, 3);
  EXPECT_EQ(blobs.read(second, 3, 64).size(), 1u);
  for (size_t i = 2; i < Blobs::kMost; ++i) EXPECT_NE(blobs.keep(api::Blob(1)), 0u);
  EXPECT_EQ(blobs.read(first, 0, 64).size(), 3u);
  (void)blobs.keep(api::Blob(1));
  EXPECT_TRUE(blobs.read(first, 0, 64).empty());
  EXPECT_EQ(blobs.read(second, 0, 64).size(), 4u);
  blobs.drop_at(second, 4);
  EXPECT_TRUE(blobs.read(second, 0, 64).empty());
}

TEST(StagingMemoryTest, AllPagesAreThereAfterTheWait) {
  Result<std::unique_ptr<StagingMemory>> made = StagingMemory::make((2u << 20) + 1);
  ASSERT_TRUE(made.ok()) << made.status().message();
  StagingMemory& memory = **made;
  EXPECT_EQ(memory.staging_bytes(), 4u << 20);
  EXPECT_GT(memory.bytes(), memory.staging_bytes());
  EXPECT_TRUE(memory.wait().ok());
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> present((memory.bytes() + page - 1) / page);
  ASSERT_EQ(::mincore(memory.data(), memory.bytes(), present.data()), 0);
  EXPECT_TRUE(std::ranges::all_of(present, [](unsigned char byte) { return byte & 1; }));
}

// Beyond the end of a file there are no pages, so the staging memory cannot be backed, as on a
// machine without free memory.
TEST(StagingMemoryTest, PagesThatCannotBeHadAreAnError) {
  const UniqueFd file(::memfd_create("short", MFD_CLOEXEC));
  ASSERT_TRUE(file);
  constexpr size_t kBytes = 4u << 20;
  void* const data = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(data, MAP_FAILED);
  const Status status = populate(static_cast<std::byte*>(data), kBytes);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("--staging-bytes"), std::string::npos) << status.message();
  ::munmap(data, kBytes);
}

}  // namespace
}  // namespace rcuda::server
