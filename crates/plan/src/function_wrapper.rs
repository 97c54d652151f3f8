//! A function with something of ours around it, under its own name.
//!
//! [`Around`] says what differs from the function within; all else is that function's. What is around it follows from
//! its name, and so does not count where functions are compared.

use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::preimage::PreimageResult;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature};

/// What a wrapper does in place of the function `inner`.
pub(crate) trait Around: Clone + Send + Sync + 'static {
    /// Whether what DataFusion knows of the function still holds: simpler forms, the order of results, that NULL gives
    /// NULL.
    const IS_AS_KNOWN: bool = false;

    /// The type of the result.
    fn return_type(&self, inner: &ScalarUDF, types: &[DataType]) -> Result<DataType> {
        inner.return_type(types)
    }

    /// The result as a column.
    fn return_field(&self, inner: &ScalarUDF, args: ReturnFieldArgs) -> Result<FieldRef> {
        inner.return_field_from_args(args)
    }

    /// The types that arguments of these types are cast to.
    fn coerce(&self, inner: &ScalarUDF, types: &[DataType]) -> Result<Vec<DataType>> {
        inner.coerce_types(types)
    }

    /// A simpler form of a call. DataFusion's may be calls of other functions, without what is around this one.
    fn simplify(&self, inner: &ScalarUDF, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        if Self::IS_AS_KNOWN { inner.simplify(args, info) } else { Ok(ExprSimplifyResult::Original(args)) }
    }

    /// The results for a batch.
    fn invoke(&self, inner: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue>;
}

/// `inner` with `around` around it.
pub(crate) fn wrap(inner: Arc<ScalarUDF>, around: impl Around) -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Wrapped { inner, around }))
}

/// Whether `function` has an `A` around it.
pub(crate) fn is_wrapped<A: Around>(function: &ScalarUDF) -> bool {
    function.inner().downcast_ref::<Wrapped<A>>().is_some()
}

#[derive(Clone)]
struct Wrapped<A> {
    inner: Arc<ScalarUDF>,
    around: A,
}

impl<A> Debug for Wrapped<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wrapped").field(&self.inner.name()).finish()
    }
}

impl<A> PartialEq for Wrapped<A> {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl<A> Eq for Wrapped<A> {}

impl<A> Hash for Wrapped<A> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl<A: Around> ScalarUDFImpl for Wrapped<A> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.inner.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.around.return_type(&self.inner, types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.around.return_field(&self.inner, args)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.around.coerce(&self.inner, types)
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.around.simplify(&self.inner, args, info)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.around.invoke(&self.inner, args)
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        let inner = self.inner.inner().with_updated_config(config).filter(|_| A::IS_AS_KNOWN)?;
        Some(ScalarUDF::from(Self { inner: Arc::new(inner), around: self.around.clone() }))
    }

    fn is_strict(&self) -> bool {
        A::IS_AS_KNOWN && self.inner.inner().is_strict()
    }

    fn preimage(&self, args: &[Expr], lit_expr: &Expr, info: &SimplifyContext) -> Result<PreimageResult> {
        if A::IS_AS_KNOWN { self.inner.inner().preimage(args, lit_expr, info) } else { Ok(PreimageResult::None) }
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        if A::IS_AS_KNOWN { self.inner.output_ordering(inputs) } else { Ok(SortProperties::Unordered) }
    }

    fn preserves_lex_ordering(&self, inputs: &[ExprProperties]) -> Result<bool> {
        if A::IS_AS_KNOWN { self.inner.preserves_lex_ordering(inputs) } else { Ok(false) }
    }
}
