//! The public gRPC API: generated types and their mapping to the domain.
