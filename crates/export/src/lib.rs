pub mod parquet_view;
pub mod virtual_file;
