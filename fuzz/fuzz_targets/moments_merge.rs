//! Any bytes as the state of grouped moments, with groups that fit or any: an error, or a result of the right shape.
//! The first byte says how many bytes are groups.
#![no_main]

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, StringViewArray};
use libfuzzer_sys::fuzz_target;
use skytether_expression::store::{EmitTo, MomentStore};

/// Groups that states of a few bytes can be about.
const GROUPS: &str = r#"{"groups":["a","b","c","d","e","f","g","h"],"n":[1,2,3,1000,5,6,7,8,18446744073709551615]}"#;

fuzz_target!(|data: &[u8]| {
    let Some((&head, data)) = data.split_first() else { return };
    let (text, state) = data.split_at(usize::from(head).min(data.len()));
    let text = if text.is_empty() { GROUPS } else { std::str::from_utf8(text).unwrap_or_default() };
    let columns: Vec<ArrayRef> = vec![Arc::new(StringViewArray::from(vec![text, GROUPS])), Arc::new(BinaryArray::from(vec![state, state]))];
    let mut store = MomentStore::default();
    if store.merge_states(&columns, &[0, 1], 2).is_err() {
        return;
    }
    if let Ok(result) = store.result(EmitTo::All, 2) {
        let lists = result.as_list::<i32>();
        assert!(lists.len() == 2 && lists.value(0).len() == lists.value(1).len());
    }
});
