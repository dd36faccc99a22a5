#include "engine/comm/mpi_session.h"

#include <fcntl.h>
#include <mpi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "engine/comm/mpi_communicator.h"
#include "engine/comm/shared_communicator.h"

#if defined(__SANITIZE_ADDRESS__)
// Open MPI gives up much of its memory only by ending, in modules that are unloaded by then and
// cannot be named. Of programs without MPI leaks are looked for.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
#endif

namespace weft {
namespace {

// Read by Open MPI in MPI_Init; what the user has set stays.
void SetMpiDefaults() {
  // MPI's own waits (start-up, Finalize) must not spin either.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  // Without mpirun there is nobody to talk to: a single rank, and no helper daemon is started for
  // it.
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr && std::getenv("PMIX_RANK") == nullptr) {
    setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
  }
}

std::shared_ptr<std::byte> Map(int fd, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(memory), [bytes](std::byte* p) { munmap(p, bytes); }};
}

// Rank 0's end of the region. `name` stays empty when there is no room for it.
std::shared_ptr<std::byte> CreateRegion(size_t bytes, std::string* name) {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::string path = "/weft-" + std::to_string(getpid()) + "-" + std::to_string(now);
  const int fd = shm_open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd < 0) return nullptr;
  std::shared_ptr<std::byte> region;
  // Allocated now: a full /dev/shm would otherwise kill a rank by SIGBUS in mid-step.
  if (posix_fallocate(fd, 0, static_cast<off_t>(bytes)) == 0) region = Map(fd, bytes);
  close(fd);
  if (region) {
    *name = path;
  } else {
    shm_unlink(path.c_str());
  }
  return region;
}

std::shared_ptr<std::byte> OpenRegion(const std::string& name, size_t bytes) {
  if (name.empty()) return nullptr;
  const int fd = shm_open(name.c_str(), O_RDWR, 0600);
  if (fd < 0) return nullptr;
  std::shared_ptr<std::byte> region = Map(fd, bytes);
  close(fd);
  return region;
}

bool AllOnOneMachine(int size) {
  MPI_Comm local;
  CheckMpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local),
           "MPI_Comm_split_type");
  int local_size = 0;
  MPI_Comm_size(local, &local_size);
  MPI_Comm_free(&local);
  return local_size == size;
}

bool OnAllRanks(bool ok) {
  int mine = ok ? 1 : 0;
  int all = 0;
  CheckMpi(MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD), "MPI_Allreduce");
  return all != 0;
}

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv)
    : exceptions_(std::uncaught_exceptions()), failed_(std::make_shared<std::atomic<bool>>(false)) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized) throw CommError("a process can have only one MPI session");
  SetMpiDefaults();
  int provided = 0;
  CheckMpi(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) {
    throw CommError("this MPI offers no MPI_THREAD_FUNNELED (level " + std::to_string(provided) +
                    ")");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
}

MpiSession::~MpiSession() {
  const bool leaving = *failed_ || std::uncaught_exceptions() > exceptions_;
  if (size_ > 1 && leaving) return;
  MPI_Finalize();
}

std::string MpiSession::BroadcastText(const std::string& text) {
  int length = static_cast<int>(text.size());
  CheckMpi(MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD), "MPI_Bcast");
  std::string received = text;
  received.resize(static_cast<size_t>(length));
  CheckMpi(MPI_Bcast(received.data(), length, MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast");
  return received;
}

std::unique_ptr<Communicator> MpiSession::MakeCommunicator(Transport transport) {
  if (transport != Transport::kMpi && AllOnOneMachine(size_)) {
    const size_t bytes = SharedExchange::RegionBytes(size_);
    std::string name;
    std::shared_ptr<std::byte> region;
    if (rank_ == 0) region = CreateRegion(bytes, &name);
    const std::string told = BroadcastText(name);
    if (rank_ != 0) region = OpenRegion(told, bytes);
    const bool all = OnAllRanks(region != nullptr);
    // All have it mapped: without a name nothing is left behind, however the ranks end.
    if (!name.empty()) shm_unlink(name.c_str());
    if (all) return std::make_unique<SharedCommunicator>(region, rank_, size_, failed_);
  }
  if (transport == Transport::kShared) {
    throw CommError("no shared memory for " + std::to_string(size_) +
                    " ranks: they must run on one machine, with " +
                    std::to_string(SharedExchange::RegionBytes(size_)) + " bytes in /dev/shm");
  }
  return std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, rank_, size_, failed_);
}

void MpiSession::Abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);  // if MPI could not
}

}  // namespace weft
