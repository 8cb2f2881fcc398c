//! Wake-ups, live events and control signals: in process or over NATS.
