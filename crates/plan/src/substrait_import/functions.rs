//! Functions: the names that plans call them by, and what plans ask of them in addition to arguments.

use std::collections::HashMap;

use datafusion_substrait::logical_plan::consumer::substrait_fun_name;
use datafusion_substrait::substrait::proto::extensions::simple_extension_declaration::MappingType;
use datafusion_substrait::substrait::proto::{FunctionOption, Plan};
use skytether_common::{Error, Result};

use crate::codec::validate;

/// A function as a plan declares it.
#[derive(Debug, Clone)]
pub(super) struct Function {
    /// The name without the types of its arguments, in lower case.
    pub(super) name: String,
    /// The types of its arguments as the declared name has them: `dec_dec`.
    pub(super) types: String,
    /// Whether it belongs to Substrait's own extensions, so that the standard defines its name.
    pub(super) standard: bool,
}

/// The functions that a plan declares, by anchor.
#[derive(Debug, Default)]
pub(super) struct Declared(HashMap<u32, Function>);

impl Declared {
    pub(super) fn of(plan: &Plan) -> Result<Self> {
        validate::width(plan.extensions.len(), "declarations")?;
        validate::width(plan.extension_urns.len(), "extensions")?;
        let urns: HashMap<u32, &str> = plan.extension_urns.iter().map(|u| (u.extension_urn_anchor, u.urn.as_str())).collect();
        let mut declared = HashMap::new();
        for declaration in &plan.extensions {
            let Some(MappingType::ExtensionFunction(f)) = &declaration.mapping_type else { continue };
            let urn = urns.get(&f.extension_urn_reference).copied().unwrap_or_default();
            let types = f.name.rsplit_once(':').map(|(_, types)| types.to_owned()).unwrap_or_default();
            // Before 2025 extensions were named by URIs, in a field that this version of the format has dropped. Those
            // also declare types.
            let standard = urn.contains("io.substrait:functions_") || (urn.is_empty() && f.name.contains(':'));
            declared.insert(f.function_anchor, Function { name: substrait_fun_name(&f.name).to_lowercase(), types, standard });
        }
        Ok(Self(declared))
    }

    pub(super) fn get(&self, anchor: u32) -> Result<&Function> {
        self.0.get(&anchor).ok_or_else(|| Error::invalid(format!("the plan calls function {anchor} without declaring it")))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = (u32, &str)> {
        self.0.iter().map(|(anchor, f)| (*anchor, f.name.as_str()))
    }
}

/// Scalar functions that do the same under another name here.
pub(super) fn scalar(name: &str) -> &str {
    match name {
        "is_nan" => "isnan",
        "sign" => "signum",
        "string_split" => "string_to_array",
        "least_skip_null" => "least",
        "greatest_skip_null" => "greatest",
        "strftime" => "to_char",
        other => other,
    }
}

/// Operators that Substrait names otherwise than the reader of `datafusion-substrait` expects.
pub(super) fn operator(name: &str) -> &str {
    match name {
        "shift_left" => "bitwise_shift_left",
        "shift_right" => "bitwise_shift_right",
        "add_intervals" => "add",
        other => other,
    }
}

/// The aggregate that does what a plan asks for by `name`, given the enumerations and options that say of what kind.
pub(super) fn aggregate(name: &str, distribution: Option<&str>) -> Result<String> {
    Ok(match (name, distribution) {
        ("std_dev" | "stddev", None | Some("SAMPLE")) => "stddev",
        ("std_dev", Some("POPULATION")) => "stddev_pop",
        ("variance", None | Some("SAMPLE")) => "var",
        ("variance", Some("POPULATION")) => "var_pop",
        (_, Some(other)) => return Err(Error::unsupported(format!("the plan calls {name:?} with {other:?}, which this engine does not know"))),
        ("any_value", None) => "first_value",
        ("approx_count_distinct", None) => "approx_distinct",
        ("sum0", None) => "sum",
        (other, None) => other,
    }
    .to_owned())
}

/// Checks that what a plan asks of a function is what this engine does: of an option's preferences one must be.
pub(super) fn options(function: &Function, options: &[FunctionOption]) -> Result<()> {
    validate::width(options.len(), "options")?;
    for option in options {
        // Where the plan does not say, any behaviour is right.
        if !option.preference.is_empty() && !option.preference.iter().any(|p| function.does(&option.name, p)) {
            return Err(Error::unsupported(format!(
                "the plan calls {:?} with the option {} = {}, which this engine does not do",
                function.name,
                option.name,
                option.preference.join(" or ")
            )));
        }
    }
    Ok(())
}

/// The preference of an option that is done: the first that can be, as [`options`] has checked; `None`
/// where the plan does not say.
pub(super) fn preference<'a>(function: &Function, options: &'a [FunctionOption], name: &str) -> Option<&'a str> {
    let option = options.iter().find(|o| o.name.eq_ignore_ascii_case(name))?;
    option.preference.iter().find(|p| function.does(name, p)).map(String::as_str)
}

/// What a function computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbers {
    Integers,
    Floats,
    Decimals,
    /// Something else, or the plan does not say.
    Other,
}

impl Function {
    fn numbers(&self) -> Numbers {
        let (mut decimal, mut float) = (false, false);
        for of in self.types.split('_') {
            match of {
                "dec" => decimal = true,
                "fp32" | "fp64" => float = true,
                "i8" | "i16" | "i32" | "i64" => {}
                _ => return Numbers::Other,
            }
        }
        match (float, decimal) {
            (true, _) => Numbers::Floats,
            (false, true) => Numbers::Decimals,
            (false, false) => Numbers::Integers,
        }
    }

    /// Whether this engine does what an option of this function asks. Each line is DataFusion's observed behaviour:
    /// `tests/plan/options.rs`.
    fn does(&self, option: &str, wanted: &str) -> bool {
        use Numbers::{Decimals, Floats, Integers};
        let of = self.numbers();
        match (self.name.as_str(), option.to_lowercase().as_str(), wanted) {
            // Integers wrap around, decimals fail, floats become infinite.
            ("add" | "subtract" | "multiply", "overflow", "SILENT") => matches!(of, Integers | Floats),
            ("add" | "subtract" | "multiply", "overflow", "ERROR") => of == Decimals,
            ("divide", "overflow", "SILENT") => of == Floats,
            ("divide", "overflow", "ERROR") => matches!(of, Integers | Decimals),
            ("abs", "overflow", "ERROR") => of == Integers,
            ("negate", "overflow", "SILENT") => of == Floats,
            ("factorial", "overflow", "ERROR") => true,
            // Whole numbers' remainders fit.
            ("modulus", "overflow", "SILENT" | "ERROR" | "SATURATE") => of == Integers,
            ("modulus", "division_type", "TRUNCATE") => matches!(of, Integers | Decimals),
            ("modulus", "on_domain_error", "ERROR") => matches!(of, Integers | Decimals),
            // Nothing has more rows than 64 bits count.
            ("count", "overflow", "SILENT" | "ERROR" | "SATURATE") => true,
            ("sum" | "sum0", "overflow", "SILENT") => matches!(of, Integers | Floats | Decimals),
            // Integers are averaged as floats.
            ("avg", "overflow", "SILENT") => matches!(of, Integers | Floats),
            ("divide", "on_division_by_zero", "IEEE" | "LIMIT") => of == Floats,
            ("divide", "on_division_by_zero" | "on_domain_error", "ERROR") => matches!(of, Integers | Decimals),
            ("divide", "on_domain_error", "NAN") => of == Floats,
            ("sqrt", "on_domain_error", "ERROR") => true,
            ("acos" | "asin" | "acosh" | "atanh" | "ln" | "log10" | "log2", "on_domain_error", "NAN") => true,
            ("ln" | "log10" | "log2", "on_log_zero", "MINUS_INFINITY") => true,
            // What IEEE 754 says how to round; no library promises it of other functions' last digit.
            ("add" | "subtract" | "multiply" | "divide", "rounding", "TIE_TO_EVEN") => of == Floats,
            ("sqrt", "rounding", "TIE_TO_EVEN") => true,
            ("round", "rounding", "TIE_AWAY_FROM_ZERO") => true,
            ("like" | "contains" | "starts_with" | "ends_with" | "strpos" | "replace" | "regexp_replace", "case_sensitivity", "CASE_SENSITIVE") => true,
            ("like", "case_sensitivity", "CASE_INSENSITIVE") => true,
            // Only Substrait's own `concat` differs from the engine's, which leaves nulls out.
            ("concat", "null_handling", "ACCEPT_NULLS") => self.standard,
            ("concat" | "concat_ws", "null_handling", "IGNORE_NULLS") => true,
            ("substring", "negative_start", "LEFT_OF_BEGINNING") => true,
            ("lower" | "upper", "char_set", "UTF8") => true,
            ("any_value", "ignore_nulls", "FALSE") => true,
            ("std_dev" | "stddev" | "variance", "distribution", "SAMPLE" | "POPULATION") => true,
            _ => false,
        }
    }
}

/// What `extract` takes out of a time: the part as `date_part` names it, and the divisor whose remainder is the result,
/// if there is one.
pub(super) fn part(component: &str) -> Result<(&'static str, Option<i64>)> {
    Ok(match component.to_uppercase().as_str() {
        "YEAR" => ("year", None),
        "QUARTER" => ("quarter", None),
        "MONTH" => ("month", None),
        "DAY" => ("day", None),
        "DAY_OF_YEAR" => ("doy", None),
        "ISO_WEEK" => ("week", None),
        "HOUR" => ("hour", None),
        "MINUTE" => ("minute", None),
        "SECOND" => ("second", None),
        // DataFusion counts these from the full minute, Substrait from the next larger unit.
        "MILLISECOND" => ("millisecond", Some(1000)),
        "MICROSECOND" => ("microsecond", Some(1000)),
        other => return Err(Error::unsupported(format!("the plan extracts {other} from a time, which this engine does not do"))),
    })
}
