// What a stranger may send to the control port: the first byte says in which pieces the rest
// arrives. Either whole frames come out, or a ControlError; a hello is refused, or means the same
// after another trip.
#include <sys/socket.h>

#include <algorithm>

#include "engine/control/frame_socket.h"
#include "engine/control/handshake.h"
#include "tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

constexpr size_t kMaxFrame = 1 << 16;

void CheckFrame(const Frame& frame) {
  Require(frame.payload.size() <= kMaxFrame, "no frame above the limit");
  Require(frame.type >= FrameType::kHello && frame.type <= FrameType::kShutdown, "a known type");
  if (frame.type != FrameType::kHello) return;
  Hello hello;
  try {
    hello = DecodeHello(frame.payload);
  } catch (const std::runtime_error&) {
    return;
  }
  Require(EncodeHello(hello) == frame.payload, "a hello means the same again");
  Require(Disagreement(hello.settings, hello.settings, 1).empty(), "nobody disagrees with itself");
}

void Feed(const uint8_t* data, size_t size, size_t piece) {
  int ends[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a socket");
  const Socket in(ends[0]);
  Socket out(ends[1]);
  ConfigureSocket(in.fd());
  FrameReader reader(kMaxFrame);
  size_t frames = 0;
  for (size_t at = 0; at < size; at += piece) {
    const size_t count = std::min(piece, size - at);
    Require(send(out.fd(), data + at, count, 0) == static_cast<ssize_t>(count), "room to send");
    while (const std::optional<Frame> frame = reader.Read(in.fd())) {
      CheckFrame(*frame);
      frames += kFrameHeaderBytes + frame->payload.size();
    }
    Require(frames <= at + count, "no more frames than bytes");
  }
  out.Close();
  const std::optional<Frame> none = reader.Read(in.fd());
  Require(!none, "no frame after the end");
}

}  // namespace
}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    weft::fuzz::Feed(data + 1, size - 1, data[0] < 4 ? data[0] + size_t{1} : size_t{1} << 14);
  } catch (const weft::ControlError&) {
  }
  return 0;
}
