#include "server/sandbox/call_filter.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/log.h"

namespace rcuda::server {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif

// The lists below do not cover the calls from this number on (462 is mseal, of Linux 6.10). On
// x86-64 these include the calls of x32.
constexpr uint32_t kFirstUnknown = 463;

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

// A sanitizer's runtime starts a program to name the functions of a report, and a process to look
// for leaks.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kStartsPrograms = true;
#else
constexpr bool kStartsPrograms = false;
#endif

constexpr uint32_t kPrograms[] = {SYS_execve, SYS_execveat};

// Calls that older headers do not name are given by number. These numbers are the same on all
// architectures.
constexpr uint32_t kCalls[] = {
#ifdef SYS_fork
    SYS_fork,
    SYS_vfork,
#endif
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kcmp,
    438,  // pidfd_getfd
    440,  // process_madvise
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    428,  // open_tree
    429,  // move_mount
    430,  // fsopen
    431,  // fsconfig
    432,  // fsmount
    433,  // fspick
    442,  // mount_setattr
    SYS_name_to_handle_at,
    SYS_open_by_handle_at,
    425,  // io_uring_setup
    426,  // io_uring_enter
    427,  // io_uring_register
    SYS_bpf,
    SYS_perf_event_open,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_quotactl,
    SYS_syslog};
constexpr uint32_t kClone3 = 435;

constexpr uint32_t error(uint32_t number) { return SECCOMP_RET_ERRNO | number; }

// The calls for streams. sendmsg is not among them: it could carry descriptors.
constexpr uint32_t kStreamCalls[] = {
#ifdef SYS_poll
    SYS_poll,
#endif
    SYS_ppoll,         SYS_read,           SYS_write,
    SYS_shutdown,      SYS_close,          SYS_futex,
    SYS_brk,           SYS_munmap,         SYS_mremap,
    SYS_madvise,       SYS_getrandom,      SYS_getpid,
    SYS_clock_gettime, SYS_gettimeofday,   SYS_restart_syscall,
    SYS_rt_sigreturn,  SYS_rt_sigprocmask, SYS_exit_group};

class Filter {
 public:
  explicit Filter(CallFilter filter)
      : refused_(filter == CallFilter::kLog ? SECCOMP_RET_LOG : error(EPERM)),
        unknown_(filter == CallFilter::kLog ? SECCOMP_RET_LOG : error(ENOSYS)) {
    load(offsetof(seccomp_data, arch));
    // Calls of another architecture (32 bit) have other numbers.
    add(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0);
    give(error(EPERM));
    load(offsetof(seccomp_data, nr));
    if (!kStartsPrograms && filter == CallFilter::kStreamsOnly) {
      allow_streams();
    } else if (!kStartsPrograms) {
      for (const uint32_t call : kPrograms) give_for(call, error(EPERM));
      for (const uint32_t call : kCalls) give_for(call, refused_);
      give_for(kClone3, unknown_);
      refuse_wider_mappings();
      give_unless_flag(SYS_clone, CLONE_THREAD);
      give_unless_flag(SYS_userfaultfd, UFFD_USER_MODE_ONLY);
      add(BPF_JMP | BPF_JGE | BPF_K, kFirstUnknown, 0, 1);
      give(unknown_);
    }
    give(SECCOMP_RET_ALLOW);
  }

  sock_fprog program() { return {static_cast<unsigned short>(code_.size()), code_.data()}; }

 private:
  void add(uint16_t operation, uint32_t value, uint8_t if_true = 0, uint8_t if_false = 0) {
    code_.push_back({operation, if_true, if_false, value});
  }
  void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
  void give(uint32_t action) { add(BPF_RET | BPF_K, action); }
  void give_for(uint32_t call, uint32_t action) {
    add(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1);
    give(action);
  }
  // Refuses a call without this flag in the low half of its first argument. Otherwise allows it.
  void give_unless_flag(uint32_t call, uint32_t flag) {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    add(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4);
    load(offsetof(seccomp_data, args));
    add(BPF_JMP | BPF_JSET | BPF_K, flag, 1, 0);
    give(refused_);
    give(SECCOMP_RET_ALLOW);
  }
  // Refuses a call with any of these flags in argument `number`, from 0. Otherwise allows it.
  void allow_without(uint32_t call, size_t number, uint32_t flags) {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    add(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4);
    load(offsetof(seccomp_data, args) + number * sizeof(seccomp_data::args[0]));
    add(BPF_JMP | BPF_JSET | BPF_K, flags, 0, 1);
    give(refused_);
    give(SECCOMP_RET_ALLOW);
  }

  void allow_streams() {
    for (const uint32_t call : kStreamCalls) give_for(call, SECCOMP_RET_ALLOW);
    // MSG_OOB on a Unix stream reaches kernel code that few programs use, and MSG_FASTOPEN
    // connects.
    allow_without(SYS_sendto, 3, MSG_OOB | MSG_FASTOPEN | MSG_ZEROCOPY);
    allow_without(SYS_recvfrom, 3, MSG_OOB);
    allow_without(SYS_recvmsg, 2, MSG_OOB);
    allow_without(SYS_mmap, 2, PROT_EXEC);
    allow_without(SYS_mprotect, 2, PROT_EXEC);
    give(error(EPERM));
  }

  // Refuses mremap(old, old_size, new_size) beyond the old size: growing a shared mapping would
  // expose the pages of other sessions (server/quota/ledger.h). realloc() then copies. Compares
  // the low 32 bits of the two sizes, and refuses every new size of 4 GiB or more.
  void refuse_wider_mappings() {
    give_for(SYS_remap_file_pages, refused_);
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 8);
    load(offsetof(seccomp_data, args[2]) + 4);
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 4);
    load(offsetof(seccomp_data, args[1]));
    add(BPF_MISC | BPF_TAX, 0);
    load(offsetof(seccomp_data, args[2]));
    add(BPF_JMP | BPF_JGT | BPF_X, 0, 0, 1);
    give(refused_);
    give(SECCOMP_RET_ALLOW);
  }

  const uint32_t refused_, unknown_;
  std::vector<sock_filter> code_;
};

}  // namespace

Status filter_calls(CallFilter filter) {
  // seccomp() extends no_new_privs to all threads.
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return Status::from_errno(errno, "setting no_new_privs (PR_SET_NO_NEW_PRIVS)");
  }
  Filter rules(filter);
  const sock_fprog program = rules.program();
  const auto install = [&](unsigned flags) {
    return ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
  };
  // Without SPEC_ALLOW, kernels before 5.16 turn on mitigations that slow down all memory accesses.
  // The oldest of these kernels do not know the flag.
  long failed = install(SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW);
  if (failed < 0 && errno == EINVAL) failed = install(SECCOMP_FILTER_FLAG_TSYNC);
  if (failed > 0) {
    return Status(Code::kInternal, "cannot filter system calls: thread " + std::to_string(failed) +
                                       " of the process has a seccomp filter of its own");
  }
  if (failed < 0 && errno != ENOSYS && errno != EINVAL)
    return Status::from_errno(errno, "filtering the system calls of the process (seccomp)");
  if (failed == 0) return {};
  if (filter == CallFilter::kStreamsOnly) {
    return Status(Code::kUnsupported, "this kernel cannot filter system calls (seccomp)");
  }
  RCUDA_WARN(
      "this kernel cannot filter system calls (seccomp): a session could start programs and leave "
      "processes behind");
  return {};
}

}  // namespace rcuda::server
