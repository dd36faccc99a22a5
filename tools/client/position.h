// How far a stream has come, as a client keeps it to resume the request elsewhere.
#pragma once

#include "weft/v1/inference.pb.h"

namespace weft::client {

class Position {
 public:
  // Every response of the stream, and of the stream that goes on with it.
  void Take(const v1::GenerateResponse& response);

  bool started() const { return !resume_.token().empty(); }
  const v1::Resume& resume() const { return resume_; }  // once started()

 private:
  v1::ResumedChoice* Choice(int index);

  v1::Resume resume_;
};

}  // namespace weft::client
