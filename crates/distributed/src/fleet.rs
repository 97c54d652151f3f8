//! A host with workers, as a [`FleetService`]: queries go through the [`Coordinator`], all else to the host.

use arrow::datatypes::SchemaRef;
use futures::StreamExt;
use futures::future::BoxFuture;
use skytether_api::explanation::Explanation;
use skytether_api::resize_report::{ResizeOptions, ResizeReport};
use skytether_api::scrub_report::{RepairOptions, RepairReport, ScrubOptions, ScrubReport};
use skytether_api::service::{FleetService, OnProgress, Prepared, ViewParts, WriterParts};
use skytether_api::statement::{Query, QueryOptions, Statement, TableScan};
use skytether_api::status::DriveStatus;
use skytether_api::values::Values;
use skytether_catalog::indexes::{IndexInfo, ListIndexes, NewIndex, OldIndex};
use skytether_catalog::listing::{DatasetInfo, Listing};
use skytether_catalog::records::root::RootRecord;
use skytether_common::{DatasetName, Result};
use skytether_host::Host;

use crate::coordinator::{Coordinator, SpreadOptions};

/// A host that spreads its queries over workers.
#[derive(Debug, Clone)]
pub struct SpreadHost {
    host: Host,
    coordinator: Coordinator,
}

impl SpreadHost {
    /// `host`, whose queries are spread as `options` say.
    #[must_use]
    pub fn new(host: Host, options: SpreadOptions) -> Self {
        Self { coordinator: Coordinator::new(host.clone(), options), host }
    }
}

impl FleetService for SpreadHost {
    fn ask_with<'a>(&'a self, asked: &'a Statement, values: &'a Values, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        self.coordinator.ask(asked, values, options)
    }

    fn prepare<'a>(&'a self, asked: &'a Statement) -> BoxFuture<'a, Result<Prepared>> {
        self.host.prepare(asked)
    }

    fn schema_with<'a>(&'a self, asked: &'a Statement, values: &'a Values) -> BoxFuture<'a, Result<SchemaRef>> {
        self.host.schema_with(asked, values)
    }

    fn scan<'a>(&'a self, scan: &'a TableScan, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        FleetService::scan(&self.host, scan, options)
    }

    fn schema_of<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<SchemaRef>> {
        FleetService::schema_of(&self.host, table)
    }

    fn explanation<'a>(&'a self, asked: &'a Statement, analyze: bool, options: &'a QueryOptions) -> BoxFuture<'a, Result<Explanation>> {
        Box::pin(async move {
            let Some(stages) = self.coordinator.described(asked, options).await? else {
                return FleetService::explanation(&self.host, asked, analyze, options).await;
            };
            let mut explanation = FleetService::explanation(&self.host, asked, false, options).await?;
            explanation.physical = stages;
            if analyze {
                let mut query = self.coordinator.ask(asked, &Values::default(), options).await?;
                while let Some(batch) = query.stream.next().await {
                    batch?;
                }
                explanation.receipt = Some(query.receipt.receipt());
            }
            Ok(explanation)
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<DatasetInfo>>> {
        FleetService::list(&self.host)
    }

    fn listing(&self) -> BoxFuture<'_, Result<Listing>> {
        FleetService::listing(&self.host)
    }

    fn describe<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<RootRecord>> {
        FleetService::describe(&self.host, name)
    }

    fn drop_dataset<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<()>> {
        FleetService::drop_dataset(&self.host, name)
    }

    fn create_index<'a>(&'a self, asked: &'a NewIndex) -> BoxFuture<'a, Result<String>> {
        FleetService::create_index(&self.host, asked)
    }

    fn indexes<'a>(&'a self, asked: &'a ListIndexes) -> BoxFuture<'a, Result<Vec<IndexInfo>>> {
        FleetService::indexes(&self.host, asked)
    }

    fn drop_index<'a>(&'a self, old: &'a OldIndex) -> BoxFuture<'a, Result<()>> {
        FleetService::drop_index(&self.host, old)
    }

    fn status(&self) -> BoxFuture<'_, Result<Vec<DriveStatus>>> {
        FleetService::status(&self.host)
    }

    fn scrub<'a>(&'a self, options: &'a ScrubOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<ScrubReport>> {
        FleetService::scrub(&self.host, options, tell)
    }

    fn repair<'a>(&'a self, options: &'a RepairOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<RepairReport>> {
        FleetService::repair(&self.host, options, tell)
    }

    fn resize<'a>(&'a self, options: &'a ResizeOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<ResizeReport>> {
        FleetService::resize(&self.host, options, tell)
    }

    fn writer_parts(&self) -> BoxFuture<'_, Result<WriterParts>> {
        FleetService::writer_parts(&self.host)
    }

    fn view_parts(&self) -> BoxFuture<'_, Result<ViewParts>> {
        FleetService::view_parts(&self.host)
    }
}
