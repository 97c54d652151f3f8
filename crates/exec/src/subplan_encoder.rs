//! Encodes a sub-plan once for all drives, together with its join filters.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::execution::SessionState;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Filter, LogicalPlan};
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_plan::PhysicalExpr;
use skytether_common::Result;
use skytether_plan::codec;
use skytether_plan::error::from_datafusion;
use tokio::sync::OnceCell;

use crate::join_filter;

/// The encoded form that drives get.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    /// The Substrait bytes.
    pub(crate) plan: Bytes,
    /// Sets of keys that it refers to.
    pub(crate) filters: BTreeMap<String, Bytes>,
}

/// A sub-plan, before and after joins have added to it.
pub struct Outgoing {
    logical: Arc<LogicalPlan>,
    state: Arc<SessionState>,
    /// As the cut made it.
    plain: Bytes,
    /// Filters whose content is known once their joins have read their build sides.
    filters: Vec<Arc<dyn PhysicalExpr>>,
    /// The encoded form, once made.
    sent: OnceCell<Sent>,
}

impl Outgoing {
    /// # Errors
    /// Where the plan can't be encoded.
    pub fn new(logical: Arc<LogicalPlan>, state: Arc<SessionState>) -> Result<Self> {
        let plain = codec::encode(&logical, &state)?;
        Ok(Self { logical, state, plain, filters: Vec::new(), sent: OnceCell::new() })
    }

    /// The same with `filters` on top. Each holds for rows of the plan's schema, and may only drop rows that
    /// the query has no use for.
    pub(crate) fn with_filters(&self, filters: impl IntoIterator<Item = Arc<dyn PhysicalExpr>>) -> Self {
        self.filtered_by(self.filters.iter().cloned().chain(filters).collect())
    }

    /// The same as the cut made it.
    pub(crate) fn without_filters(&self) -> Self {
        self.filtered_by(Vec::new())
    }

    fn filtered_by(&self, filters: Vec<Arc<dyn PhysicalExpr>>) -> Self {
        Self { logical: Arc::clone(&self.logical), state: Arc::clone(&self.state), plain: self.plain.clone(), filters, sent: OnceCell::new() }
    }

    /// Whether the drive has seen all of its rows before it gives the first: the end is near then.
    pub(crate) fn gathers(&self) -> bool {
        let mut at = self.logical.as_ref();
        loop {
            match at {
                LogicalPlan::Aggregate(_) | LogicalPlan::Sort(_) => return true,
                LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Limit(_) => at = at.inputs()[0],
                _ => return false,
            }
        }
    }

    /// The filters of joins.
    pub(crate) fn filters(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.filters
    }

    /// The encoded form that drives get. Waits until the joins with filters have read their build sides, which never
    /// wait for this.
    ///
    /// # Errors
    /// Where the plan can't be encoded.
    pub(crate) async fn sent(&self) -> Result<Sent> {
        if self.filters.is_empty() {
            return Ok(Sent { plan: self.plain.clone(), filters: BTreeMap::new() });
        }
        self.sent.get_or_try_init(|| self.filtered()).await.cloned()
    }

    async fn filtered(&self) -> Result<Sent> {
        let (mut conditions, mut filters) = (Vec::new(), BTreeMap::new());
        for filter in &self.filters {
            let Some(filter) = filter.downcast_ref::<DynamicFilterPhysicalExpr>() else { continue };
            filter.wait_complete().await;
            let now = filter.current().map_err(from_datafusion)?;
            conditions.extend(join_filter::condition(&now, self.logical.schema(), self.state.as_ref(), &mut filters).map_err(from_datafusion)?);
        }
        let Some(predicate) = conjunction(conditions) else { return Ok(Sent { plan: self.plain.clone(), filters }) };
        let filtered = Filter::try_new(predicate, Arc::clone(&self.logical)).map_err(from_datafusion)?;
        Ok(Sent { plan: codec::encode(&LogicalPlan::Filter(filtered), &self.state)?, filters })
    }
}
