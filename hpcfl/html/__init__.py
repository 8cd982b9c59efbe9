"""One page of HTML that shows what runs cost: tables, figures, and everything recorded."""
