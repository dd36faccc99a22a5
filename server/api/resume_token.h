// Resume tokens: what a client keeps so that its stream survives the front end.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "server/api/resolve.h"

namespace weft::server {

// One byte of version, eight of checksum, then the record.
std::string EncodeResumeToken(const resume::v1::Record& record);
// INVALID_ARGUMENT where it is none of ours, or damaged.
grpc::Status DecodeResumeToken(const std::string& token, resume::v1::Record* record);

// What a stream begins with, once an engine admitted its request.
v1::Started StartedOf(const Resolved& resolved, const engine::v1::Admitted& admitted);

// Fills in out->record, of a request that is otherwise resolved. Where the request resumes a
// stream, checks that it is the same one as then and how far it came, and takes over id, seed and
// position.
grpc::Status ResolveResume(const v1::Resume* resume, const std::string& request_id,
                           const v1::Sampling& sampling, const Limits& limits, Resolved* out);

// "" when this engine can go on with a request that has begun, else why not.
std::string WhyNotResumed(const Resolved& resolved, const engine::v1::EngineInfo& info);

}  // namespace weft::server
