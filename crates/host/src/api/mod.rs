pub mod estimate;
pub mod explanation;
pub mod receipt;
pub mod receipt_tree;
pub mod resize_report;
pub mod scrub_report;
pub mod statement;
pub mod status;
