//! Plans the scan for a sub-plan: which drives run it, and what they may see. Shared results are planned here as well.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::compute::SortOptions;
use datafusion::catalog::Session;
use datafusion::error::Result as DfResult;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};
use futures::future::{BoxFuture, ready};
use skytether_common::Pushdown;
use skytether_common::{DatasetName, Error, PartitionName, Result};
use skytether_device::{Annotation, PushdownLevel};
use skytether_partitioning::Placement;
use skytether_plan::error::{from_datafusion, to_datafusion};
use skytether_plan::shared::Shared;
use skytether_plan::{CutPlan, DriveScan, explain_text, pushdown_level};
use skytether_scheduler::kinds::Kinds;
use skytether_scheduler::profile::Profile;
use skytether_scheduler::query::{Limits, Policy};

use crate::host_reasons as reasons;
use crate::host_side::{parities, prefer_host};
use crate::kept;
use crate::pruning::{conditions, empties, may_match};
use crate::tables::{Named, NamedTables};
use skytether_api::device_profile::profile_of;
use skytether_catalog::records::bounds::Bounds;
use skytether_catalog::records::partition::PartitionRecord;
use skytether_catalog::table_view::View;
use skytether_cluster::cluster::Cluster;
use skytether_cluster::options::AdaptiveMode;
use skytether_exec::adaptive::cost_inputs::{share_read, work};
use skytether_exec::adaptive::local_worker::LocalExecutor;
use skytether_exec::broadcast::BroadcastTables;
use skytether_exec::estimate::Estimates;
use skytether_exec::local_executors::LocalExecutors;
use skytether_exec::scan::{DriveScanExec, Moves, QueryContext, ScanParts, Target};
use skytether_exec::shared_result::SharedResults;
use skytether_exec::subplan_encoder::Outgoing;

/// Makes [`DriveScanExec`]s of [`DriveScan`]s, and the readers of [`Shared`] results.
pub(crate) struct ScanPlanner {
    pub(crate) cluster: Cluster,
    pub(crate) executors: LocalExecutors,
    pub(crate) cut: CutPlan,
    pub(crate) tables: Arc<NamedTables>,
    pub(crate) context: QueryContext,
    pub(crate) state: Arc<SessionState>,
    /// The pushdown policy that the query asks for.
    pub(crate) asked: Pushdown,
    pub(crate) shared: SharedResults,
}

impl ExtensionPlanner for ScanPlanner {
    // By hand what `#[async_trait]` would make, without a future that holds the arguments: see
    // [`skytether_flight_sql::forward`].
    fn plan_extension<'life0, 'life1, 'life2, 'life3, 'life4, 'life5, 'life6, 'life7, 'async_trait>(
        &'life0 self,
        _: &'life1 dyn PhysicalPlanner,
        node: &'life2 dyn UserDefinedLogicalNode,
        _: &'life3 [&'life4 LogicalPlan],
        inputs: &'life5 [Arc<dyn ExecutionPlan>],
        _: &'life6 dyn Session,
        _: &'life7 PhysicalPlanningContext,
    ) -> BoxFuture<'async_trait, DfResult<Option<Arc<dyn ExecutionPlan>>>>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
        'life2: 'async_trait,
        'life3: 'async_trait,
        'life4: 'async_trait,
        'life5: 'async_trait,
        'life6: 'async_trait,
        'life7: 'async_trait,
        Self: 'async_trait,
    {
        if let Some(shared) = node.as_any().downcast_ref::<Shared>() {
            return Box::pin(ready(self.shared.reader(shared, inputs).map(Some)));
        }
        let Some(scan) = node.as_any().downcast_ref::<DriveScan>() else { return Box::pin(ready(Ok(None))) };
        let exec = self.scan(scan, inputs).map_err(to_datafusion);
        Box::pin(ready(exec.map(|exec| Some(Arc::new(exec) as Arc<dyn ExecutionPlan>))))
    }
}

impl ScanPlanner {
    fn scan(&self, scan: &DriveScan, inputs: &[Arc<dyn ExecutionPlan>]) -> Result<DriveScanExec> {
        let named = self.tables.get(&scan.table).ok_or_else(|| Error::internal(format!("the cut names {}, which the query does not", scan.table)))?;
        if !named.parts.is_empty() {
            return Err(Error::internal(format!("{} was to be read part by part", scan.title())));
        }
        let others =
            scan.with.iter().map(|table| self.tables.get(table).ok_or_else(|| Error::internal(format!("the cut names {table}, which the query does not"))));
        let others = others.collect::<Result<Vec<_>>>()?;
        // The sub-plan calls tables as drives do.
        let tables = std::iter::once(&named).chain(&others).map(|named| Ok((named.at_drives(), named.estimated()?)));
        let tables = tables.collect::<Result<Estimates>>()?;
        let mut targets = self.targets(named, &others)?;
        let unasked = if others.is_empty() { self.leave_out(scan, named, &mut targets)? } else { Vec::new() };
        let moves = if others.is_empty() && !targets.is_empty() { self.moves(scan, named, &tables, &targets)? } else { None };
        let parts = ScanParts {
            of_cut: reasons::scan_number(&self.cut, scan),
            dataset: named.record.name.clone(),
            table: scan.title(),
            rung: scan.rung,
            // A query that names a policy asks for that way, and not for the fastest.
            keep: self.asked == Pushdown::Adaptive && scan.rung == PushdownLevel::Full && kept::is_worth_it(&scan.sub_plan),
            text: explain_text::sub_plan(scan),
            plan: Outgoing::new(Arc::clone(&scan.sub_plan), Arc::clone(&self.state))?,
            targets,
            unasked,
            schema: Arc::clone(scan.schema().inner()),
            given: tables.given(&scan.sub_plan),
            beside: BroadcastTables::new(inputs, scan),
            order: order(&scan.sub_plan, &self.state).map_err(from_datafusion)?,
            moves,
        };
        Ok(DriveScanExec::new(self.context.clone(), parts))
    }

    /// What the scan starts from if its work may move; nothing where it may not.
    fn moves(&self, scan: &DriveScan, named: &Named, tables: &Estimates, targets: &[Target]) -> Result<Option<Moves>> {
        let table = named.table()?;
        let profiled = targets.iter().any(|target| target.drive.info().profile.is_some());
        let policy = match (self.cluster.options().moving, self.asked) {
            (AdaptiveMode::Never, _) => return Ok(None),
            (AdaptiveMode::Always(policy), _) => policy,
            (AdaptiveMode::AsNeeded, Pushdown::Adaptive) if profiled => Policy::Adaptive,
            // Drives send the slices of a sub-plan raw that is no more than a scan. Under the other static policies
            // drives run the whole sub-plan.
            (AdaptiveMode::AsNeeded, Pushdown::Raw) if profiled => Policy::Static(PushdownLevel::Raw),
            (AdaptiveMode::AsNeeded, Pushdown::Full | Pushdown::Filter) if profiled => Policy::Static(PushdownLevel::Full),
            // A drive that is lost in the middle of the query leaves its remaining slices to the fallback executor.
            (AdaptiveMode::AsNeeded, _) if self.cluster.catalog().health().is_redundant() => Policy::Static(PushdownLevel::Full),
            (AdaptiveMode::AsNeeded, Pushdown::Adaptive | Pushdown::Full) if targets.iter().any(|target| target.drive.capabilities().remote) => {
                Policy::Static(PushdownLevel::Full)
            }
            (AdaptiveMode::AsNeeded, _) => return Ok(None),
        };
        // A result that is whole only per drive must not be divided. Of a table that lies everywhere, any one drive has
        // all.
        let apart = scan.placement == Placement::Spread && pushdown_level::divides(&scan.sub_plan);
        if !apart || (table.partitioned_by.is_some() && pushdown_level::aggregates(&scan.sub_plan)) {
            return Ok(None);
        }
        let options = self.cluster.options();
        let engines = targets.iter().map(|target| Ok(self.executors.get(&target.drive, self.cluster.drives().len())));
        // Of a table's columns the plan reads some; which of them are the long ones is not known here.
        let read = share_read(&scan.sub_plan, &named.schema);
        let parts = targets.iter().map(|target| {
            let id = target.drive.info().id;
            let part = table.partitions.iter().find(|partition| partition.drive == id);
            part.map_or((0, 0, 0), |part| (part.slices, part.rows, (part.bytes as f64 * read) as u64))
        });
        let health = self.cluster.catalog().health();
        let lost: Vec<bool> = targets.iter().map(|target| health.is_down(target.at)).collect();
        let engines: Vec<Arc<LocalExecutor>> = engines.collect::<Result<_>>()?;
        // A fallback executor is another device than the drive.
        let kinds = engines.iter().zip(&lost).map(|(engine, lost)| if *lost { Kinds::default() } else { engine.kinds() });
        let mut moves = Moves {
            kinds: kinds.collect(),
            parts: parts.collect(),
            work: work(&scan.sub_plan, tables, table.rows, table.matrix.is_some())?,
            policy,
            estimated: policy == Policy::Adaptive,
            host: options.profile(),
            profiles: self.profiles(targets, &lost),
            limits: Limits { memory: options.limits.memory.min((options.memory_limit / 4) as u64), ..options.limits },
            engines,
        };
        if let (AdaptiveMode::AsNeeded, Policy::Adaptive, Some(redundancy)) = (options.moving, policy, &table.redundancy)
            && prefer_host(redundancy.scheme, &lost, read, &moves)
        {
            moves.policy = Policy::Static(PushdownLevel::Raw);
        }
        Ok(Some(moves))
    }

    /// The assumed devices of `targets`. Where `is_lost` says that some are lost, the others also read for decoding.
    /// Slices are read once for both purposes, but each living drive reads its share of the parities in addition. The
    /// fallback executor of a lost drive has this host's speed, and reads no faster than the slowest living drive can
    /// send.
    fn profiles(&self, targets: &[Target], is_lost: &[bool]) -> Vec<Profile> {
        let own: Vec<Profile> = targets.iter().map(|target| profile_of(target.drive.info())).collect();
        let living = || own.iter().zip(is_lost).filter(|(_, lost)| !**lost).map(|(profile, _)| profile);
        if is_lost.iter().all(|lost| *lost == is_lost[0]) {
            return own;
        }
        let share = 1.0 / (1.0 + parities(is_lost));
        let rate = living().map(|profile| profile.disk_bytes_per_s.min(profile.link_bytes_per_s())).fold(f64::INFINITY, f64::min);
        let stand_in = Profile { disk_bytes_per_s: rate * share, ..self.cluster.options().profile() };
        own.iter()
            .zip(is_lost)
            .map(|(profile, lost)| if *lost { stand_in } else { Profile { disk_bytes_per_s: profile.disk_bytes_per_s * share, ..*profile } })
            .collect()
    }

    /// Removes targets that have no matching row, by the bounds in the root record. Returns the annotations that
    /// represent them.
    fn leave_out(&self, scan: &DriveScan, named: &Named, targets: &mut Vec<Target>) -> Result<Vec<Annotation>> {
        let table = named.table()?;
        if named.view != View::Stored || scan.placement != Placement::Spread {
            return Ok(Vec::new());
        }
        let filters = conditions(&scan.sub_plan);
        if filters.is_empty() {
            return Ok(Vec::new());
        }
        let records: Vec<Option<&PartitionRecord>> =
            targets.iter().map(|target| table.partitions.iter().find(|part| part.drive == target.drive.info().id)).collect();
        let nothing = Bounds::default();
        let bounds: Vec<&Bounds> = records.iter().map(|record| record.map_or(&nothing, |record| &record.bounds)).collect();
        let mut kept = may_match(self.state.as_ref(), &named.schema, &filters, &bounds);
        // An aggregate has a result of no rows as well, which is a drive's to give.
        if !empties(&scan.sub_plan)
            && !kept.contains(&true)
            && let Some(first) = kept.first_mut()
        {
            *first = true;
        }
        let unasked = targets.iter().zip(&records).zip(&kept).filter(|(_, kept)| !**kept).map(|((target, record), _)| {
            let slices = record.map_or(0, |record| u64::from(record.slices));
            Annotation {
                cse: target.drive.info().name.clone(),
                rung: Some(scan.rung),
                slices_pruned: slices,
                slices_total: Some(slices),
                rows_read: Some(0),
                reason: Some("not asked: the bounds in the root record tell that nothing there can match".to_owned()),
                ..Annotation::default()
            }
        });
        let unasked = unasked.collect();
        let mut kept = kept.into_iter();
        targets.retain(|_| kept.next().unwrap_or(true));
        Ok(unasked)
    }

    /// The drives that take part, each with what its sub-plan may see. That is its partition of the table, and its
    /// copies of the small tables about cells and genes. Tables in `others` are partitioned alike: a drive sees its
    /// partition of each.
    fn targets(&self, named: &Named, others: &[&Arc<Named>]) -> Result<Vec<Target>> {
        let record = &named.record;
        let table = named.table()?;
        let partitions = match table.placement {
            Placement::Spread => table.partitions.iter().collect(),
            Placement::Everywhere => {
                let catalog = self.cluster.catalog();
                let here = table.partitions.iter().filter(|p| catalog.drive(&p.drive, &record.name).is_ok_and(|at| !catalog.health().is_down(at)));
                let mut copies: Vec<_> = here.collect();
                if copies.is_empty() {
                    copies = table.partitions.iter().collect();
                }
                let ids: Vec<_> = copies.iter().map(|p| p.drive).collect();
                let chosen = catalog.choose(&record.name, &named.stored, &ids);
                copies.get(chosen).copied().into_iter().collect::<Vec<_>>()
            }
        };
        partitions
            .into_iter()
            .map(|partition| {
                let at = self.cluster.catalog().drive(&partition.drive, &record.name)?;
                let mut visible = record.visible(&named.stored, partition);
                let mut with: BTreeMap<DatasetName, BTreeMap<String, PartitionName>> = BTreeMap::new();
                for other in others {
                    let beside = other.table()?.partitions.iter().find(|p| p.drive == partition.drive && p.slot == partition.slot);
                    let slot = beside
                        .ok_or_else(|| Error::internal(format!("{} is to be joined at {}, which has no part of it", other.record.name, partition.drive)))?
                        .slot;
                    let part = other.record.partition(&other.stored, slot);
                    if other.record.name == record.name {
                        visible.insert(other.stored.clone(), part);
                    } else {
                        with.entry(other.record.name.clone()).or_default().insert(other.stored.clone(), part);
                    }
                }
                Ok(Target { drive: Arc::clone(&self.cluster.drives()[at]), faults: self.cluster.faults(at)?, at, partitions: visible, with })
            })
            .collect()
    }
}

/// The order in which a drive gives the rows of `plan`.
fn order(plan: &LogicalPlan, state: &SessionState) -> DfResult<Option<LexOrdering>> {
    let LogicalPlan::Sort(sort) = plan else { return Ok(None) };
    let keys = sort.expr.iter().map(|key| {
        let options = SortOptions { descending: !key.asc, nulls_first: key.nulls_first };
        Ok(PhysicalSortExpr { expr: state.create_physical_expr(key.expr.clone(), plan.schema())?, options })
    });
    Ok(LexOrdering::new(keys.collect::<DfResult<Vec<_>>>()?))
}
