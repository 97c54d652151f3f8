pub mod dataset_writer;
pub mod matrix_writer;
pub mod outbox;
pub mod row_router;
pub mod stripe_encoder;
